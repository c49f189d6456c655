/* Maps the first 4 GiB, writes 123 to the boot timer's address, and resets. */
.include "guests/macros.inc"
.globl _start
_start:
    /* Page directories for 4 GiB at 0x20_0000, a new PDPT at 0x1f_f000. */
    mov rdi, 0x200000
    mov rax, 0x83               /* present, writable, 2 MiB */
    mov ecx, 512 * 4
1:  mov [rdi], rax
    add rax, 0x200000
    add rdi, 8
    dec ecx
    jnz 1b
    mov rdi, 0x1ff000
    mov rax, 0x200003
    mov ecx, 4
2:  mov [rdi], rax
    add rax, 0x1000
    add rdi, 8
    dec ecx
    jnz 2b
    mov rax, 0x1ff003
    mov [0x9000], rax
    mov rax, cr3
    mov cr3, rax
    mov eax, 0xc0000000
    mov byte ptr [rax], 123
    reset
