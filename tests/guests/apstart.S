/* Starts the second processor with INIT and start-up interrupts through the local APIC, waits for
   it to say 'B', says 'A' itself, and resets. */
.include "guests/macros.inc"
.globl _start
_start:
    /* The second processor's code goes to 0x8000: real mode, 16 bits. */
    lea rsi, [rip + ap_code]
    mov edi, 0x8000
    mov ecx, offset ap_end - ap_code
    rep movsb
    /* x2APIC mode: MSR 0x1b bits 10 and 11; the command register is MSR 0x830. */
    mov ecx, 0x1b
    rdmsr
    or eax, 0xc00
    wrmsr
    mov ecx, 0x830
    mov edx, 1                  /* to APIC id 1 */
    mov eax, 0x4500             /* INIT, assert */
    wrmsr
    mov eax, 0x4608             /* start-up at page 8 */
    wrmsr
1:  pause
    cmp byte ptr [0x8800], 1
    jne 1b
    mov al, 'A'
    serial_byte
    reset

.code16
ap_code:
    mov dx, 0x3f8
    mov al, 'B'
    out dx, al
    mov byte ptr ds:[0x8800], 1
2:  hlt
    jmp 2b
ap_end:
