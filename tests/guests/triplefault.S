/* Faults without anything to handle it: the boot IDT has no entry. */
.include "guests/macros.inc"
.globl _start
_start:
    ud2
