/* Counts for ever at COUNT, and looks each time whether a debug register has what was put there; if it
   has not, that is told on COM1, and the guest ends. No breakpoint is switched on. */
.include "guests/macros.inc"

.set COUNT, 0x300000
.set HERE, 0x123000

.globl _start
_start:
    mov ebx, HERE
    mov dr1, rbx
1:  mov rax, dr1
    cmp rax, rbx
    jne 2f
    inc qword ptr [COUNT]
    jmp 1b
2:  mov al, '!'
    serial_byte
    reset
