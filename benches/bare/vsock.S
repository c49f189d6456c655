/* Connects to a port of the host, and then sends all that it may, or takes what comes and answers a
   byte for so many, or sends back what comes (virtio 1.2, section 5.10). */
.include "common.inc"

.set RX, QUEUES
.set TX, QUEUES + NEXT_QUEUE
/* Bytes of a buffer to receive, as a Linux guest has them. */
.set BUFFER, 4096
.set BUFFERS, 0x800000
.set HEADERS, 0x600000
.set ECHO, 0x700000
.set DATA, 0x1000000
.set WINDOW, 0x40000
/* Requests that can be on their way. Both sides keep their order, so that their places do. */
.set PLACES, 32

.set OP_REQUEST, 1
.set OP_RESPONSE, 2
.set OP_RW, 5
.set OP_CREDIT_UPDATE, 6
.set OP_CREDIT_REQUEST, 7

.globl _start
_start:
    to_ring_3
    jmp 5f
/* 0 to send, 1 to take, 2 to send back; the host's port; bytes at most of what is sent; bytes that are
   answered with one. */
arguments 4
.set MODE, arguments
.set PORT, arguments + 4
.set SIZE, arguments + 8
.set COUNT, arguments + 12
.balign 8
connected: .long 0
told: .long 0                       /* of what has been received, how much the host knows of */
answered: .long 0                   /* and how much has been answered */
5:
    find_device 19
    begin_driver
    queue 0
    queue 1
    queue 2
    driver_ok
    xor r8d, r8d                    /* receive: available index, */
    xor r9d, r9d                    /* used index */
    xor r10d, r10d                  /* send: available index */
    xor r12d, r12d                  /* bytes sent */
    xor r13d, r13d                  /* bytes received */
    xor r14d, r14d                  /* the host's room */
    xor r15d, r15d                  /* what it has taken */
    xor ebx, ebx
1:  mov ecx, ebx
    shl ecx, 4
    mov eax, ebx
    shl eax, 12
    add eax, BUFFERS
    mov [rcx + RX], rax
    mov dword ptr [rcx + RX + 8], BUFFER
    mov dword ptr [rcx + RX + 12], 2
    call offer
    inc ebx
    cmp ebx, ENTRIES
    jne 1b
    notify 0
    mov ebp, OP_REQUEST
    xor ecx, ecx
    call send
    notify 1

look:
    cmp r9w, [RX + USED + 2]
    jne received
    cmp dword ptr [connected], 0
    je look
    cmp dword ptr [MODE], 0
    jne look
    /* As much as the host has room for. */
    mov ecx, r14d
    add ecx, r15d
    sub ecx, r12d
    jle look
    cmp ecx, [SIZE]
    jb 1f
    mov ecx, [SIZE]
1:  mov ax, r10w
    sub ax, [TX + USED + 2]
    cmp ax, PLACES
    je look
    mov ebp, OP_RW
    mov esi, DATA
    call send
    notify 1
    jmp look

received:
    mov eax, r9d
    and eax, ENTRIES - 1
    mov ebx, [RX + USED + 4 + rax * 8]
    inc r9w
    mov ecx, ebx
    shl ecx, 12
    lea rsi, [rcx + BUFFERS]
    mov eax, [PORT]
    cmp eax, [rsi + 16]             /* of another connection */
    jne again
    cmp dword ptr [rsi + 20], 2000
    jne again
    mov r14d, [rsi + 36]
    mov r15d, [rsi + 40]
    movzx eax, word ptr [rsi + 30]
    cmp eax, OP_RW
    je data
    cmp eax, OP_CREDIT_UPDATE
    je again
    cmp eax, OP_CREDIT_REQUEST
    je tell
    cmp eax, OP_RESPONSE
    jne failed
    mov dword ptr [connected], 1
    jmp again
failed:
    give_up

data:
    mov ecx, [rsi + 24]
    add r13d, ecx
    cmp dword ptr [MODE], 2
    je echo
    mov eax, r13d
    sub eax, [answered]
    cmp eax, [COUNT]
    jb 1f
    mov eax, [COUNT]
    add [answered], eax
    mov ebp, OP_RW
    mov esi, DATA
    mov ecx, 1
    call send
    notify 1
1:  mov eax, r13d
    sub eax, [told]
    cmp eax, WINDOW / 4
    jb again
tell:
    mov ebp, OP_CREDIT_UPDATE
    xor ecx, ecx
    call send
    notify 1
    jmp again
echo:
    lea rsi, [rsi + 44]
    mov rdx, rdi
    mov edi, r10d
    and edi, PLACES - 1
    shl edi, 12
    add edi, ECHO
    mov eax, edi
    mov ebp, ecx
    rep movsb
    mov rdi, rdx
    mov ecx, ebp
    mov esi, eax
    mov ebp, OP_RW
    call send
    notify 1
again:
    call offer
    notify 0
    jmp look

/* Buffer EBX to the device. */
offer:
    mov eax, r8d
    and eax, ENTRIES - 1
    mov [RX + AVAILABLE + 4 + rax * 2], bx
    inc r8w
    mov [RX + AVAILABLE + 2], r8w
    ret

/* A packet: operation EBP, ECX bytes at ESI. */
send:
    mov eax, r10d
    and eax, PLACES - 1
    mov edx, eax
    shl edx, 6
    lea rdx, [rdx + HEADERS]
    mov qword ptr [rdx], 3          /* from this guest */
    mov qword ptr [rdx + 8], 2      /* to the host */
    mov dword ptr [rdx + 16], 2000
    mov r11d, [PORT]
    mov [rdx + 20], r11d
    mov [rdx + 24], ecx
    mov word ptr [rdx + 28], 1      /* a stream */
    mov [rdx + 30], bp
    mov dword ptr [rdx + 32], 0
    mov dword ptr [rdx + 36], WINDOW
    mov [rdx + 40], r13d
    mov [told], r13d
    add r12d, ecx
    lea r11d, [eax * 2]             /* its first descriptor */
    shl eax, 5
    mov [rax + TX], rdx
    mov dword ptr [rax + TX + 8], 44
    mov dword ptr [rax + TX + 12], 0
    test ecx, ecx
    jz 1f
    mov word ptr [rax + TX + 12], 1
    mov edx, r11d
    inc edx
    mov [rax + TX + 14], dx
    mov [rax + TX + 16], rsi
    mov [rax + TX + 24], ecx
    mov dword ptr [rax + TX + 28], 0
1:  mov eax, r10d
    and eax, ENTRIES - 1
    mov [TX + AVAILABLE + 4 + rax * 2], r11w
    inc r10w
    mov [TX + AVAILABLE + 2], r10w
    ret
