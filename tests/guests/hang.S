/* Writes one byte, and halts for ever. */
.include "guests/macros.inc"
.globl _start
_start:
    mov al, 'A'
    serial_byte
1:  hlt
    jmp 1b
