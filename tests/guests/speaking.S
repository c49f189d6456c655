/* Writes the letters from A to Z to COM1 over and over, from ring 0. */
.include "guests/macros.inc"
.globl _start
_start:
    mov bl, 'A'
1:  mov al, bl
    serial_byte
    mov ecx, 20000
2:  dec ecx
    jnz 2b
    inc bl
    cmp bl, 'Z'
    jbe 1b
    mov al, 10
    serial_byte
    jmp _start
