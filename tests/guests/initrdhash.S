/* Hashes the initrd that the zero page tells of (FNV-1a, 64 bits), and dumps the hash. */
.include "guests/macros.inc"
.globl _start
_start:
    mov r8d, [rsi + 0x218]      /* hdr.ramdisk_image */
    mov r9d, [rsi + 0x21c]      /* hdr.ramdisk_size */
    mov rax, 0xcbf29ce484222325
    mov r10, 0x100000001b3
1:  test r9, r9
    jz 2f
    movzx ecx, byte ptr [r8]
    xor rax, rcx
    imul rax, r10
    inc r8
    dec r9
    jmp 1b
2:  mov [rip + value], rax
    lea rsi, [rip + value]
    mov ecx, 8
    serial_dump
    reset
.balign 8
value:
    .quad 0
