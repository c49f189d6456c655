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

/* The words of a page or block: the mark, and its number. */
.macro put_words at, mark, number
    mov qword ptr [\at], \mark
    mov qword ptr [\at + 8], \number
    mov qword ptr [\at + 2048], \mark
    mov qword ptr [\at + 4088], \mark
.endm

.macro find_words at, number
    cmp [\at], rbx
    jne wrong
    cmp [\at + 8], \number
    jne wrong
    cmp [\at + 2048], rbx
    jne wrong
    cmp [\at + 4088], rbx
    jne wrong
.endm

/* Back to `1` for each page, which is at RSI and has the number RCX, or each block, R13. */
.macro each_page
    mov esi, PAGES
    xor ecx, ecx
1:
.endm

.macro next_page
    add esi, 4096
    inc ecx
    cmp ecx, PAGE_COUNT
    jne 1b
.endm

.macro each_block
    xor r13d, r13d
1:
.endm

.macro next_block
    inc r13d
    cmp r13d, BLOCK_COUNT
    jne 1b
.endm

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
    each_page
    put_words rsi, rbx, rcx
    next_page

    each_block
    put_words DATA, rbx, r13
    to_write
    request wrong
    next_block

    each_block
    put_words DATA, 0, -1
    to_read
    request wrong
    find_words DATA, r13
    next_block

    each_page
    find_words rsi, rcx
    next_page

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
