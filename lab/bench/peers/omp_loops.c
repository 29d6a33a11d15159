/* A peer of `sidecore offload bench --only loops`: the same loops, split by OpenMP.
 *
 * Why here: parallel regions whose threads wait actively are the fastest way to split a short loop,
 * as long as nobody else wants their cores; a program of its own, because OpenMP's threads belong
 * to a process. Prints `ready`; reads a line `[window_ns, steps, count, steps, count, ...]`, runs
 * that sequence of loops over and over for so long, and answers with the nanoseconds that one pass
 * takes (the median of batches); repeats until its input ends. Between two lines its threads are
 * ended, so that they take no core from others. Build: cc -O2 -fopenmp.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS_MAX = 64, BATCHES_MAX = 100000, LINE_MAX_BYTES = 4096 };

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* One unit: a chain of steps, each of which needs the one before. */
static inline unsigned long unit(unsigned long value, long steps)
{
    for (long step = 0; step < steps; step++)
        value = value * 0x5851f42d4c957f2dUL ^ (unsigned long)step;
    return value;
}

static unsigned long *items;

static void pass(const long long *calls, int count)
{
    for (int call = 0; call < count; call++) {
        long steps = (long)calls[2 * call], units = (long)calls[2 * call + 1];
#pragma omp parallel for schedule(static)
        for (long index = 0; index < units; index++)
            items[index] = unit(items[index], steps);
    }
}

int main(void)
{
    static double batches[BATCHES_MAX];
    static char line[LINE_MAX_BYTES];
    long long values[2 * CALLS_MAX + 1];

    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int count = 0;
        long long units_max = 1;
        for (char *at = line + 1; *at && *at != ']' && count < 2 * CALLS_MAX + 1; count++) {
            values[count] = strtoll(at, &at, 10);
            if (count && count % 2 == 0 && values[count] > units_max)
                units_max = values[count];
            if (*at == ',')
                at++;
        }
        if (count < 3 || count % 2 == 0)
            return 2;
        items = malloc((size_t)units_max * sizeof *items);
        if (!items)
            return 3;
        for (long long index = 0; index < units_max; index++)
            items[index] = (unsigned long)index;
        const long long *calls = values + 1;
        int calls_count = count / 2;
        /* Threads start, caches fill; then the size of a batch is found. */
        for (int warm = 0; warm < 3; warm++)
            pass(calls, calls_count);
        long long begun = now_ns(), taken = 0, passes = 0;
        while (taken < values[0] / 8) {
            pass(calls, calls_count);
            passes++;
            taken = now_ns() - begun;
        }
        long long each = taken / passes, batch = each > 0 ? 500000 / each : 500000;
        if (batch < 1)
            batch = 1;
        size_t kept = 0;
        begun = now_ns();
        do {
            long long from = now_ns();
            for (long long one = 0; one < batch; one++)
                pass(calls, calls_count);
            batches[kept++] = (double)(now_ns() - from) / (double)batch;
        } while (kept < BATCHES_MAX && now_ns() - begun < values[0]);
        qsort(batches, kept, sizeof *batches, by_size);
        free(items);
        omp_pause_resource_all(omp_pause_hard);
        printf("%.3f\n", batches[kept / 2]);
        fflush(stdout);
    }
    return 0;
}
