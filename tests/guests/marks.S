/* Waits until its balloon (its second device) is to have a size, and takes that for its mark: a
   word that no other guest writes. Puts it into PAGE_COUNT pages of memory and BLOCK_COUNT blocks of
   its first drive, and reads all of it again, ROUNDS times. Then a full stop on COM1, and it
   stands still; anything that was not as written is a `!`, and ends the guest.

   In a page or block, words 0, 256 and 511 are the mark, and word 1 is its number. */
.include "guests/drive.inc"

.set TARGET, 0x1100                 /* the balloon's first register of its own, from MMIO on */
.set NOT_MAGIC, 0xb4adbeb2          /* turned round, as the word must not be in the code */
.set PAGES, 0x400000
.set PAGE_COUNT, 256
.set BLOCK_COUNT, 8
.set ROUNDS, 2

.globl _start
_start:
    set_up_drive
1:  pause
    mov ebx, [rdi + TARGET]
    test ebx, ebx
    jz 1b
    mov eax, NOT_MAGIC
    not eax
    shl rax, 32
    or rbx, rax
    mov r12d, ROUNDS
round:
    mov esi, PAGES
    xor ecx, ecx
1:  mov [rsi], rbx
    mov [rsi + 8], rcx
    mov [rsi + 2048], rbx
    mov [rsi + 4088], rbx
    add esi, 4096
    inc ecx
    cmp ecx, PAGE_COUNT
    jne 1b

    xor r13d, r13d
1:  mov [DATA], rbx
    mov [DATA + 8], r13
    mov [DATA + 2048], rbx
    mov [DATA + 4088], rbx
    to_write
    request wrong
    inc r13d
    cmp r13d, BLOCK_COUNT
    jne 1b

    xor r13d, r13d
1:  mov qword ptr [DATA], 0
    mov qword ptr [DATA + 8], -1
    mov qword ptr [DATA + 2048], 0
    mov qword ptr [DATA + 4088], 0
    to_read
    request wrong
    cmp [DATA], rbx
    jne wrong
    cmp [DATA + 8], r13
    jne wrong
    cmp [DATA + 2048], rbx
    jne wrong
    cmp [DATA + 4088], rbx
    jne wrong
    inc r13d
    cmp r13d, BLOCK_COUNT
    jne 1b

    mov esi, PAGES
    xor ecx, ecx
1:  cmp [rsi], rbx
    jne wrong
    cmp [rsi + 8], rcx
    jne wrong
    cmp [rsi + 2048], rbx
    jne wrong
    cmp [rsi + 4088], rbx
    jne wrong
    add esi, 4096
    inc ecx
    cmp ecx, PAGE_COUNT
    jne 1b

    dec r12d
    jnz round
    mov al, '.'
    serial_byte
1:  hlt
    jmp 1b
wrong:
    mov al, '!'
    serial_byte
    reset
