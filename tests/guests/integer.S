/* Instructions of ring 0 that software KVM leaves to the monitor: POPCNT, CMPXCHG16B, STAC, CLAC,
   FWAIT, INT3, XGETBV. */
.include "guests/rings.inc"

/* Notes the arithmetic flags but AF, which AND leaves undefined, and AC. */
.macro note_flags
    pushfq
    pop rax
    and eax, 0x408c5
    note rax
.endm

main:
    /* POPCNT: every width, register and memory, the upper part of the target, flags. */
    mov rax, 0xff00ff00ff00ff00
    mov rbx, -1
    add al, 1                   /* clears CF, ZF and more */
    popcnt rbx, rax
    note rbx
    note_flags
    mov rbx, -1
    popcnt ebx, dword ptr [rip + data]
    note rbx
    mov rbx, -1
    mov r9d, 0x8421
    popcnt bx, r9w
    note rbx
    xor eax, eax
    stc
    popcnt r10, rax
    note r10
    note_flags

    /* CMPXCHG16B: different, then the same. */
    mov rax, 1
    mov rdx, 2
    mov rbx, 3
    mov rcx, 4
    lea rdi, [rip + pair - 16]
    mov rsi, 2
    lock cmpxchg16b [rdi + rsi * 8]
    note rax
    note rdx
    note_flags
    mov rax, [rip + pair]
    mov rdx, [rip + pair + 8]
    cmpxchg16b [rip + pair]
    note_flags
    mov rax, [rip + pair]
    note rax
    mov rax, [rip + pair + 8]
    note rax
    resume_at 1f
    cmpxchg16b [rip + pair + 8] /* not aligned: #GP */
1:
    /* STAC, CLAC. */
    stac
    note_flags
    clac
    note_flags

    /* INT3: the saved RIP is behind it. */
    resume_at 2f
    int3
int3_end:
2:  mov rax, [STACK - 40]
    lea rbx, [rip + int3_end]
    sub rax, rbx
    note rax

    /* FWAIT: nothing pending, then a division by zero with its exception unmasked. */
    fninit
    fwait
    in_ring_3 divide
    resume_at 3f
    fwait
3:  fninit

    /* XGETBV: XCR0 is what has been set; what is in use is part of it; others are invalid. */
    xor ecx, ecx
    xgetbv
    shl rdx, 32
    or rax, rdx
    cmp rax, r13
    sete al
    movzx eax, al
    note rax
    resume_at 4f
    mov ecx, 7
    xgetbv
4:  mov rax, cr4
    btr rax, 18                 /* OSXSAVE */
    mov cr4, rax
    resume_at 5f
    xor ecx, ecx
    xgetbv
5:  finish

divide:
    mov word ptr [rip + scratch], 0x37b
    fldcw [rip + scratch]
    fldz
    fld1
    fdiv st, st(1)
    int 0x80

.balign 16
data:
    .quad 0x00000000f000000f, 0
pair:
    .quad 0x1111111111111111, 0x2222222222222222
    .quad 0
scratch:
    .quad 0
