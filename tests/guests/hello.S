/* Writes one byte, and resets: the shortest life of a machine. */
.include "guests/macros.inc"
.globl _start
_start:
    mov al, 'A'
    serial_byte
    reset
