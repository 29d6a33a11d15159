/* A peer of `sidecore offload bench`: parallel regions of OpenMP, counted.
 *
 * Why here: two OpenMP programs that wait actively on the same cores stop each other; that is the
 * thing to beat. A program of its own, because OpenMP's threads belong to a process.
 * Prints `ready`, reads a window of time in nanoseconds, answers with the regions that it completed
 * in it and with the time that one region in a hundred exceeded (p99); repeats until its input
 * ends. Build: cc -O2 -fopenmp. Waits as OMP_WAIT_POLICY says. Its one argument is the processor
 * time that each thread works in a region, in nanoseconds.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int by_size(const void *left, const void *right)
{
    unsigned a = *(const unsigned *)left, b = *(const unsigned *)right;
    return (a > b) - (a < b);
}

/* Arithmetic that no compiler shortens. */
static void work(long steps)
{
    volatile unsigned long value = 1;
    for (long step = 0; step < steps; step++)
        value = value * 0x5851f42d4c957f2dUL ^ (unsigned long)step;
}

static long long thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* How many steps take so long; the shortest of several tries, as interruption only adds. */
static long calibrate(long long wanted_ns)
{
    enum { STEPS = 200000 };
    long long least = -1;
    for (int try = 0; try < 9; try++) {
        long long begun = thread_cpu_ns();
        work(STEPS);
        long long taken = thread_cpu_ns() - begun;
        if (least < 0 || taken < least)
            least = taken;
    }
    return STEPS * wanted_ns / (least > 0 ? least : 1);
}

enum { TAKEN_MAX = 1 << 22 };

int main(int count_arguments, char **arguments)
{
    static unsigned taken[TAKEN_MAX];
    long long begin, from, until;
    int threads = 0;
    char line[256];
    long steps = calibrate(count_arguments > 1 ? atoll(arguments[1]) : 0);

    /* The threads are there before anything is counted. */
#pragma omp parallel reduction(+ : threads)
    threads += 1;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "{\"begin_ns\":%lld,\"from_ns\":%lld,\"until_ns\":%lld}", &begin, &from,
                   &until) != 3)
            return 2;
        struct timespec start = { begin / 1000000000LL, begin % 1000000000LL };
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
        size_t count = 0;
        long long before, after = now_ns();
        while (after < until) {
            int took_part = 0;
            before = after;
#pragma omp parallel reduction(+ : took_part)
            {
                work(steps);
                took_part += 1;
            }
            if (took_part != threads)
                return 1;
            after = now_ns();
            if (after >= from && after < until && count < TAKEN_MAX)
                taken[count++] = (unsigned)(after - before);
        }
        qsort(taken, count, sizeof *taken, by_size);
        printf("[{\"cycles\":%zu,\"p99_ns\":%u}]\n", count,
               count ? taken[(count - 1) * 99 / 100] : 0);
        fflush(stdout);
    }
    return 0;
}
