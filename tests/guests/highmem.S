/* Maps the first 5 GiB, then probes addresses: writes a pattern, reads it back, and dumps the
   eight bytes read. Below the gap, in the gap (nobody there: all ones), and above it. */
.include "guests/macros.inc"
.globl _start
_start:
    /* Page directories for 5 GiB at 0x20_0000, a new PDPT at 0x1f_f000. */
    mov rdi, 0x200000
    mov rax, 0x83               /* present, writable, 2 MiB */
    mov ecx, 512 * 5
1:  mov [rdi], rax
    add rax, 0x200000
    add rdi, 8
    dec ecx
    jnz 1b
    mov rdi, 0x1ff000
    mov rax, 0x200003
    mov ecx, 5
2:  mov [rdi], rax
    add rax, 0x1000
    add rdi, 8
    dec ecx
    jnz 2b
    mov rax, 0x1ff003
    mov [0x9000], rax
    mov rax, cr3
    mov cr3, rax

    lea r8, [rip + addresses]
    mov r9d, 4
3:  mov rsi, [r8]
    mov rax, 0x1122334455667788
    add rax, rsi
    mov [rsi], rax
    mov rax, [rsi]
    mov [rip + value], rax
    lea rsi, [rip + value]
    mov ecx, 8
    serial_dump
    add r8, 8
    dec r9d
    jnz 3b
    reset

.balign 8
addresses:
    .quad 0x1000000             /* 16 MiB */
    .quad 0xbffffff8            /* the last word below the gap */
    .quad 0xd0ff0000            /* in the gap */
    .quad 0x100000000           /* 4 GiB */
value:
    .quad 0
