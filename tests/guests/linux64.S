/* Dumps what the 64-bit entry of the Linux boot protocol promises: the registers RSI and RSP, the
   zero page at RSI, and the command line that it points to. */
.include "guests/macros.inc"
.globl _start
_start:
    mov rbx, rsi
    mov rax, rsp
    mov rsp, 0x9000
    push rax
    push rbx
    mov rsi, rsp
    mov ecx, 16
    serial_dump
    mov rsi, rbx
    mov ecx, 4096
    serial_dump
    mov esi, [rbx + 0x228]      /* hdr.cmd_line_ptr */
    mov ecx, 2048
    serial_dump
    reset
