/* Several processes at once keep patterns of their own in every vector register while they give
   the processor away and take signals whose handler clobbers all of them. Says `N wrong of M
   rounds`, and ends with status 1 if a register has changed. `simd ROUNDS`. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 3, YIELDS = 5, WORDS = 32 * 8 + 8 };
typedef unsigned long words[WORDS] __attribute__((aligned(64)));

static int wide;
static volatile sig_atomic_t signals;

#define EACH16(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) \
    op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15)
#define EACH32(op) EACH16(op) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23) \
    op(24) op(25) op(26) op(27) op(28) op(29) op(30) op(31)
#define LOAD_Y(n) "vmovdqu 32*" #n "(%0), %%ymm" #n "\n"
#define STORE_Y(n) "vmovdqu %%ymm" #n ", 32*" #n "(%1)\n"
#define LOAD_Z(n) "vmovdqu64 64*" #n "(%0), %%zmm" #n "\n"
#define STORE_Z(n) "vmovdqu64 %%zmm" #n ", 64*" #n "(%1)\n"
#define K(op) op(1) op(2) op(3) op(4) op(5) op(6) op(7)
#define LOAD_K(n) "kmovq 2048+8*" #n "(%0), %%k" #n "\n"
#define STORE_K(n) "kmovq %%k" #n ", 2048+8*" #n "(%1)\n"
/* sched_yield(2), YIELDS times, and a little time for a signal to come. */
#define GIVE_AWAY "mov %2, %%r12d\n" \
    "1: mov $24, %%eax\n syscall\n mov $200000, %%eax\n 2: dec %%eax\n jnz 2b\n" \
    "dec %%r12d\n jnz 1b\n"
#define CLOBBERS "rax", "rcx", "r11", "r12", "memory", "cc"

static void keep(const unsigned long *in, unsigned long *out) {
    if (wide)
        __asm__ volatile(EACH32(LOAD_Z) K(LOAD_K) GIVE_AWAY EACH32(STORE_Z) K(STORE_K) "vzeroupper"
                         : : "r"(in), "r"(out), "i"(YIELDS) : CLOBBERS);
    else
        __asm__ volatile(EACH16(LOAD_Y) GIVE_AWAY EACH16(STORE_Y) "vzeroupper"
                         : : "r"(in), "r"(out), "i"(YIELDS) : CLOBBERS);
}

static void on_signal(int number) {
    static words garbage, ignored;
    (void)number;
    signals++;
    memset(garbage, 0xee, sizeof garbage);
    if (wide)
        __asm__ volatile(EACH32(LOAD_Z) K(LOAD_K) : : "r"(garbage), "r"(ignored) : "memory");
    else
        __asm__ volatile(EACH16(LOAD_Y) : : "r"(garbage), "r"(ignored) : "memory");
}

/* Returns how many rounds found another value than they left. */
static int run(unsigned long seed, int rounds) {
    static words in, out;
    int wrong = 0;
    unsigned long used = wide ? WORDS : 16 * 4;
    for (int round = 0; round < rounds; round++) {
        for (int word = 0; word < WORDS; word++)
            in[word] = (seed + round) * 0x9e3779b97f4a7c15 + word * 0x0101010101010101UL;
        in[256] = 0; /* K0 is not among them. */
        keep(in, out);
        wrong += memcmp(in, out, used * sizeof in[0]) != 0;
    }
    return wrong;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    int *wrong = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int total = 0, lost = 0, interrupted = 0;
    wide = __builtin_cpu_supports("avx512bw");
    for (int process = 0; process < PROCESSES; process++)
        if (fork() == 0) {
            struct itimerval often = {{0, 30000}, {0, 30000}};
            signal(SIGALRM, on_signal);
            setitimer(ITIMER_REAL, &often, 0);
            wrong[2 * process] = run(process + 1, rounds);
            wrong[2 * process + 1] = signals;
            _exit(0);
        }
    for (int process = 0, status; process < PROCESSES; process++)
        lost += wait(&status) < 0 || status != 0;
    for (int process = 0; process < PROCESSES; process++) {
        total += wrong[2 * process];
        interrupted += wrong[2 * process + 1] > 0;
    }
    printf("%d wrong of %d rounds, %d lost, %d interrupted, %s\n", total, rounds * PROCESSES, lost,
           interrupted, wide ? "AVX-512" : "AVX");
    return total || lost;
}
