/* Reads the first sector of its first drive over and over, and writes that sector's first byte to
   COM1 each time. A read that fails is told, and ends the guest. */
.include "guests/drive.inc"

.globl _start
_start:
    set_up_drive
1:  mov byte ptr [DATA], '?'
    request 4f
    mov al, [DATA]
    serial_byte
    mov ecx, 20000
3:  dec ecx
    jnz 3b
    jmp 1b
4:  mov al, '!'
    serial_byte
    reset
