/* Touches ports and addresses where nobody is, in every width, then says so. */
.include "guests/macros.inc"
.globl _start
_start:
    mov dx, 0x2f8
    in al, dx
    mov bl, al
    mov dx, 0x3f8
    out dx, al                  /* all ones */
    mov dx, 0x1234
    in ax, dx
    in eax, dx
    out dx, al
    out dx, ax
    out dx, eax
    mov eax, 0x3f000000         /* RAM or nothing, both fine */
    mov ebx, [rax]
    mov [rax], bl
    mov [rax], bx
    mov [rax], rbx
    mov al, '.'
    serial_byte
    reset
