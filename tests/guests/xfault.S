/* XSAVE and XRSTOR on pages that are apart, missing or read-only, and with operands that are
   not allowed. */
.include "guests/rings.inc"

/* Pages of 4 KiB at 1 GiB: two that are apart, none, read-only, none. */
.set WINDOW, 0x40000000
.set DIRECTORY, 0x400000
.set TABLE, 0x401000
.set FIRST, 0x302000
.set SECOND, 0x300000
.set READ_ONLY, 0x304000
.set LATE, 0x305000

.macro state instruction, address
    mov rdi, \address
    mov eax, 3
    xor edx, edx
    \instruction [rdi]
.endm

main:
    mov eax, DIRECTORY
    or eax, 7
    mov [0xa008], rax
    mov qword ptr [DIRECTORY], TABLE + 7
    mov qword ptr [TABLE], FIRST + 7
    mov qword ptr [TABLE + 8], SECOND + 7
    mov qword ptr [TABLE + 24], READ_ONLY + 5
    mov rax, cr3
    mov cr3, rax
    /* CR0.WP: read-only means ring 0 too. */
    mov rax, cr0
    bts rax, 16
    mov cr0, rax

    /* Across a border of pages: the legacy region ends the first one, the header begins the
       second. */
    in_ring_3 write
    state xsave64, WINDOW + 0xe00
    mov rax, [FIRST + 0xe00 + 160]
    note rax
    mov rax, [SECOND]
    and eax, 2
    note rax
    in_ring_3 clear
    state xrstor64, WINDOW + 0xe00
    in_ring_3 read
    note rbx
    /* The processor marks pages as used and written to. */
    mov rax, [TABLE + 8]
    and eax, 0x60
    note rax

    /* The header is on a page that is not there. */
    resume_at 1f
    state xsave64, WINDOW + 0x1e00
1:  resume_at 2f
    state xrstor64, WINDOW + 0x1e00
    /* A read-only page: may be read, may not be written. */
2:  mov qword ptr [READ_ONLY + 512], 0
    mov dword ptr [READ_ONLY + 24], 0x1f80
    state xrstor64, WINDOW + 0x3000
    resume_at 3f
    state xsave64, WINDOW + 0x3000
    /* ... except without CR0.WP. */
3:  mov rax, cr0
    btr rax, 16
    mov cr0, rax
    state xsave64, WINDOW + 0x3000
    mov eax, [READ_ONLY + 24]
    note rax

    /* Demand paging: the handler adds the page, and the instruction runs again. */
    in_ring_3 write
    resume_at 5f
    jmp 6f
5:  mov qword ptr [TABLE + 32], LATE + 3
    invlpg [WINDOW + 0x4000]
6:  state xsave64, WINDOW + 0x4000
    mov rax, [LATE + 160]
    note rax

    /* Not aligned; not canonical; a header that asks for what is not switched on; the compacted
       format without a word of what it holds. */
    resume_at 7f
    state xsave64, WINDOW + 32
7:  resume_at 8f
    mov rax, 0x800000000000
    state xsave64, rax
8:  mov rax, 0x4000000000000000
    mov [FIRST + 512], rax
    mov dword ptr [FIRST + 24], 0x1f80
    resume_at 1f
    state xrstor64, WINDOW
1:  mov qword ptr [FIRST + 512], 0
    mov qword ptr [FIRST + 528], 1
    resume_at 2f
    state xrstor64, WINDOW
    /* Bits of MXCSR that there are not. */
2:  mov qword ptr [FIRST + 528], 0
    mov dword ptr [FIRST + 24], 0x80000000
    resume_at 3f
    state xrstor64, WINDOW
    /* A task switch pending: #NM. */
3:  mov rax, cr0
    bts rax, 3
    mov cr0, rax
    resume_at 4f
    state xsave64, WINDOW
4:  finish

write:
    mov rax, 0x5a5a5a5a12345678
    movq xmm0, rax
    int 0x80
clear:
    pxor xmm0, xmm0
    int 0x80
read:
    movq rbx, xmm0
    int 0x80
