/* Enters ACPI S5 through the sleep control register. */
.include "guests/macros.inc"
.globl _start
_start:
    mov dx, 0x600
    mov al, 5 << 2 | 1 << 5
    out dx, al
1:  hlt
    jmp 1b
