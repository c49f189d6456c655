/* Reads the first sector of its first drive over and over, by the plainest of drivers, and writes
   that sector's first byte to COM1 each time. A read that fails is told, and ends the guest. */
.include "guests/macros.inc"

.set PDPT, 0xa000
.set MMIO_PAGES, 0x220000
.set MMIO, 0xd0000000
.set DESCRIPTORS, 0x300000
.set AVAILABLE, 0x301000
.set USED, 0x302000
.set HEADER, 0x303000
.set DATA, 0x304000
.set STATUS, 0x305000

/* Writes a device register. */
.macro put register, value
    mov dword ptr [rdi + \register], \value
.endm

/* A descriptor: address, length, flags, the next one. */
.macro describe index, address, length, flags
    mov dword ptr [DESCRIPTORS + 16 * \index], \address
    mov dword ptr [DESCRIPTORS + 16 * \index + 8], \length
    mov word ptr [DESCRIPTORS + 16 * \index + 12], \flags
    mov word ptr [DESCRIPTORS + 16 * \index + 14], \index + 1
.endm

.globl _start
_start:
    /* The first GiB is mapped at boot; the device's registers are in the fourth. */
    mov eax, MMIO | 0x83
    mov [MMIO_PAGES + 8 * ((MMIO - 0xc0000000) >> 21)], rax
    mov qword ptr [PDPT + 8 * 3], MMIO_PAGES | 3
    mov rax, cr3
    mov cr3, rax
    mov edi, MMIO
    put 0x70, 0                     /* status: reset, then acknowledged, then a driver */
    put 0x70, 1
    put 0x70, 3
    put 0x24, 1                     /* of all features, virtio 1 alone */
    put 0x20, 1
    put 0x24, 0
    put 0x20, 0
    put 0x70, 0xb
    put 0x30, 0                     /* the queue */
    put 0x38, 8
    put 0x80, DESCRIPTORS
    put 0x84, 0
    put 0x90, AVAILABLE
    put 0x94, 0
    put 0xa0, USED
    put 0xa4, 0
    put 0x44, 1
    put 0x70, 0xf
    describe 0, HEADER, 16, 1
    describe 1, DATA, 512, 3
    describe 2, STATUS, 1, 2
    mov word ptr [AVAILABLE], 1     /* no interrupts */
    xor r8d, r8d
1:  mov byte ptr [STATUS], 0xff
    mov byte ptr [DATA], '?'
    inc r8w
    mov [AVAILABLE + 2], r8w        /* every entry of the ring is descriptor 0 */
    mfence
    put 0x50, 0
2:  pause
    cmp [USED + 2], r8w
    jne 2b
    cmp byte ptr [STATUS], 0
    jne 4f
    mov al, [DATA]
    serial_byte
    mov ecx, 20000
3:  dec ecx
    jnz 3b
    jmp 1b
4:  mov al, '!'
    serial_byte
    reset
