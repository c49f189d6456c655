/* Counts for ever, in ring 3: in a register, in memory (COUNT), and in a page that changes with
   the count (PAGES + 4096 * (count % 256)). Each time all three have to agree with what was there
   before; a disagreement is told on COM1, and the guest ends. */
.include "guests/rings.inc"

.set COUNT, 0x300000
.set PAGES, 0x400000

main:
    in_ring_3 count
    mov al, '!'
    serial_byte
    reset

count:
    xor ebx, ebx                    /* the count */
    mov esi, COUNT
1:  cmp [rsi], rbx
    jne 2f
    mov rax, rbx
    movq xmm3, rbx
    and eax, 255
    shl eax, 12
    mov rdx, [rax + PAGES]          /* 256 counts ago, or never */
    test rdx, rdx
    jz 3f
    add rdx, 256
    cmp rdx, rbx
    jne 2f
3:  mov [rax + PAGES], rbx
    movq rcx, xmm3
    cmp rcx, rbx
    jne 2f
    inc rbx
    mov [rsi], rbx
    jmp 1b
2:  int 0x80
