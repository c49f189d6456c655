/* Extended state that ring 3 has written, saved and restored by ring 0. */
.include "guests/rings.inc"

.set A, 0x300000
.set B, 0x302000
.set SEEN, 0x304000

.macro xsave_to area, mask
    mov edi, \area
    mov eax, \mask
    xor edx, edx
    xsave64 [rdi]
.endm

.macro xrstor_from area, mask
    mov edi, \area
    mov eax, \mask
    xor edx, edx
    xrstor64 [rdi]
.endm

/* Notes `words` words from `from` on. */
.macro note_words from, words
    mov esi, \from
    mov edi, r15d
    mov ecx, \words
    rep movsq
    mov r15d, edi
.endm

main:
    /* Saved by ring 0 as ring 3 wrote it: a header without bits outside the mask, its own bits. */
    mov qword ptr [A + 512], 0
    in_ring_3 write_first
    xsave_to A, 7
    note_words (A + 512), 1
    note_words (A + 24), 1        /* MXCSR, and its mask, which is the processor's */
    mov dword ptr [r15 - 4], 0
    note_words (A + 160), 4       /* XMM0, XMM1 */
    note_words (A + 160 + 240), 2 /* XMM15 */
    note_words (A + 576), 4       /* the upper halves of YMM0, YMM1 */
    note_words (A + 576 + 240), 2

    /* The same state comes back after ring 3 has written another one. */
    in_ring_3 write_second
    xsave_to B, 7
    xrstor_from A, 7
    in_ring_3 read
    note_words SEEN, 8          /* YMM0, YMM1 */
    note_words (SEEN + 15 * 32), 4

    /* AVX from the second state, SSE from the first. */
    xrstor_from B, 4
    in_ring_3 read
    note_words SEEN, 4

    /* A component whose bit is not set in the header is initialized; MXCSR is loaded. */
    mov qword ptr [B + 512], 2
    mov dword ptr [B + 24], 0x1f00
    xrstor_from B, 6
    in_ring_3 read
    note_words SEEN, 4
    note_words (SEEN + 512), 1

    /* XSAVEOPT writes nothing for an initial component but its bit. */
    in_ring_3 clear_upper
    mov edi, A
    mov qword ptr [A + 576], 0x77
    mov eax, 6
    xor edx, edx
    xsaveopt64 [rdi]
    note_words (A + 512), 1
    note_words (A + 576), 1

    /* AVX-512, where there is such a thing: the bits of its three components. */
    mov eax, r13d
    and eax, 0xe0
    note rax
    cmp eax, 0xe0
    jne 1f
    in_ring_3 write_wide
    mov qword ptr [A + 512], 0
    xsave_to A, -1
    in_ring_3 clear_wide
    xrstor_from A, -1
    in_ring_3 read_wide
    note_words SEEN, 8          /* ZMM1 */
    note_words (SEEN + 64), 8     /* ZMM31 */
    note_words (SEEN + 128), 1    /* K5 */
1:  finish

/* YMM0, YMM1 and YMM15 from two patterns. */
.macro write pattern
    vmovdqu ymm0, [rip + \pattern]
    vpaddq ymm1, ymm0, ymm0
    vpaddq ymm15, ymm1, ymm0
.endm
write_first:
    mov dword ptr [SEEN], 0x1fa0
    ldmxcsr [SEEN]
    write first
    int 0x80
write_second:
    mov dword ptr [SEEN], 0x1f80
    ldmxcsr [SEEN]
    vzeroall
    write second
    int 0x80
read:
    mov eax, SEEN
    vmovdqu [rax], ymm0
    vmovdqu [rax + 32], ymm1
    vmovdqu [rax + 15 * 32], ymm15
    stmxcsr [rax + 512]
    int 0x80
clear_upper:
    vzeroupper
    int 0x80
write_wide:
    vmovdqu64 zmm1, [rip + first]
    vpaddq zmm31, zmm1, zmm1
    mov rax, 0x123456789abcdef0
    kmovq k5, rax
    int 0x80
clear_wide:
    vpxorq zmm1, zmm1, zmm1
    vpxorq zmm31, zmm31, zmm31
    kxorq k5, k5, k5
    int 0x80
read_wide:
    mov eax, SEEN
    vmovdqu64 [rax], zmm1
    vmovdqu64 [rax + 64], zmm31
    kmovq [rax + 128], k5
    int 0x80

.balign 64
first:
    .quad 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
second:
    .quad 0x2100, 0x2200, 0x2300, 0x2400
