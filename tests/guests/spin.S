/* Writes one byte, and never stops computing. */
.include "guests/macros.inc"
.globl _start
_start:
    mov al, 'A'
    serial_byte
1:  jmp 1b
