/* Dumps what the PVH entry promises: EBX, the start info, its memory map, module list and command
   line. */
.include "guests/macros.inc"
.code32
.globl _start
_start:
    mov esp, 0x9000
    push ebx
    mov esi, esp
    mov ecx, 4
    serial_dump
    mov esi, ebx
    mov ecx, 56
    serial_dump
    mov esi, [ebx + 40]         /* memmap_paddr */
    mov ecx, [ebx + 48]         /* memmap_entries, of 24 bytes each */
    imul ecx, ecx, 24
    serial_dump
    mov esi, [ebx + 16]         /* modlist_paddr */
    mov ecx, [ebx + 12]         /* nr_modules, of 32 bytes each */
    shl ecx, 5
    serial_dump
    mov esi, [ebx + 24]         /* cmdline_paddr */
    mov ecx, 2048
    serial_dump
    reset

.section .note.pvh, "a", @note
    .long 4, 4, 18              /* "Xen", XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long _start
