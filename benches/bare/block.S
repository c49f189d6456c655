/* Keeps so many requests to its drive in flight, and writes the sign each time so many are done. */
.include "common.inc"

.set RING, QUEUES + AVAILABLE
.set DONE, QUEUES + USED
.set HEADERS, 0x600000
.set STATUS, 0x610000
.set DATA, 0x1000000

.globl _start
_start:
    to_ring_3
    jmp 5f
/* Bytes of a request; requests for each sign; in flight, up to 32; 0 to read or 1 to write; how many
   requests the drive has room for; 1 for places at random. */
arguments 6
.set SIZE, arguments
.set COUNT, arguments + 4
.set DEPTH, arguments + 8
.set KIND, arguments + 12
.set PLACES, arguments + 16
.set RANDOM, arguments + 20
5:
    find_device 2
    begin_driver
    queue 0
    driver_ok
    xor r8d, r8d                    /* available index */
    xor r9d, r9d                    /* used index */
    mov r10d, [COUNT]
    mov r12d, 1                     /* what places are made of */
    xor r13d, r13d                  /* the next place in a row */
    /* Request n has the descriptors from 4n on. */
    xor ebx, ebx
1:  mov ecx, ebx
    shl ecx, 4                      /* its first descriptor */
    lea rcx, [rcx + QUEUES]
    lea eax, [ebx * 4 + HEADERS]
    mov [rcx], rax
    mov dword ptr [rcx + 8], 16
    mov word ptr [rcx + 12], 1
    lea eax, [ebx + 1]
    mov [rcx + 14], ax
    mov eax, ebx
    shl eax, 16                     /* 256 KiB for each request */
    add eax, DATA
    mov [rcx + 16], rax
    mov eax, [SIZE]
    mov [rcx + 24], eax
    mov ax, 3
    cmp dword ptr [KIND], 0
    je 2f
    mov ax, 1
2:  mov [rcx + 28], ax
    lea eax, [ebx + 2]
    mov [rcx + 30], ax
    lea eax, [ebx + STATUS]
    mov [rcx + 32], rax
    mov dword ptr [rcx + 40], 1
    mov word ptr [rcx + 44], 2
    mov eax, [KIND]
    mov [ebx * 4 + HEADERS], eax
    call submit
    add ebx, 4
    mov eax, ebx
    shr eax, 2
    cmp eax, [DEPTH]
    jne 1b
    notify 0
wait:
    mov ax, [DONE + 2]
    cmp ax, r9w
    je wait
2:  mov eax, r9d
    and eax, ENTRIES - 1
    mov ebx, [DONE + 4 + rax * 8]
    inc r9w
    cmp byte ptr [rbx + STATUS], 0
    jne failed
    call submit
    dec r10d
    jnz 3f
    sign
    mov r10d, [COUNT]
3:  cmp r9w, [DONE + 2]
    jne 2b
    notify 0
    jmp wait

failed:
    give_up

/* Request EBX / 4 to its next place. */
submit:
    cmp dword ptr [RANDOM], 0
    je 1f
    mov rax, 6364136223846793005
    imul r12, rax
    inc r12
    mov rax, r12
    shr rax, 32
    mov ecx, [PLACES]
    imul rax, rcx
    shr rax, 32
    jmp 2f
1:  mov eax, r13d
    inc r13d
    cmp r13d, [PLACES]
    jne 2f
    xor r13d, r13d
2:  mov ecx, [SIZE]
    shr ecx, 9
    imul rax, rcx
    mov [rbx * 4 + HEADERS + 8], rax
    mov byte ptr [rbx + STATUS], 0xff
    mov eax, r8d
    and eax, ENTRIES - 1
    mov [RING + 4 + rax * 2], bx
    inc r8w
    mov [RING + 2], r8w
    ret
