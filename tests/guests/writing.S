/* Writes a number to BLOCK_COUNT blocks of its first drive, then reads all of them, and goes on with
   the next number, for ever. What is not as written is told, and ends the guest. */
.include "guests/drive.inc"

.set BLOCK_COUNT, 32

.globl _start
_start:
    set_up_drive
    xor ebx, ebx                    /* the number */
1:  inc rbx
    xor r13d, r13d
write:
    mov [DATA], rbx
    mov [DATA + 4088], rbx
    to_write
    request wrong
    inc r13d
    cmp r13d, BLOCK_COUNT
    jne write

    xor r13d, r13d
read:
    mov qword ptr [DATA], 0
    mov qword ptr [DATA + 4088], 0
    to_read
    request wrong
    cmp [DATA], rbx
    jne wrong
    cmp [DATA + 4088], rbx
    jne wrong
    inc r13d
    cmp r13d, BLOCK_COUNT
    jne read
    jmp 1b
wrong:
    mov al, '!'
    serial_byte
    reset
