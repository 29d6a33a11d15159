/* A kernel in C: adds up the 64-bit words of input 0, modulo 2^64.
 *
 * Word 0 of the reply is the sum, word 1 how many requests this engine has served. */
#include <sidecore_kernel.h>

#include <stdlib.h>

enum { BLOCK = 16 << 10 };

struct served {
    uint64_t requests;
};

static void *create(void) { return calloc(1, sizeof(struct served)); }

static void destroy(void *state) { free(state); }

static int word_sum(struct sidecore_run *run) {
    struct served *served = (struct served *)run->state;
    const uint64_t *words = (const uint64_t *)(void *)run->store;
    /* Four sums, so that no addition waits for the one before it. */
    uint64_t sums[4] = {0, 0, 0, 0}, at, length;
    if (run->inputs != 1 || run->input_bytes[0] % sizeof *words != 0)
        return sidecore_fail(run, "word_sum: one input of whole 64-bit words, please");
    length = run->input_bytes[0];
    for (at = 0; at < length; at += BLOCK) {
        const uint64_t bytes = length - at < BLOCK ? length - at : BLOCK;
        const uint64_t count = bytes / sizeof *words, whole = count & ~(uint64_t)3;
        uint64_t index;
        if (sidecore_get(run, run->store, 0, at, bytes, 0) != 0)
            return sidecore_fail(run, "word_sum: the input ended early");
        sidecore_wait(run, 1u << 0);
        for (index = 0; index < whole; index += 4) {
            sums[0] += words[index];
            sums[1] += words[index + 1];
            sums[2] += words[index + 2];
            sums[3] += words[index + 3];
        }
        for (; index < count; index++)
            sums[0] += words[index];
        if (sidecore_yield(run))
            return sidecore_fail(run, "word_sum: abandoned");
    }
    run->reply[0] = sums[0] + sums[1] + sums[2] + sums[3];
    run->reply[1] = ++served->requests;
    return 0;
}

/* Nothing at all: what a call costs. */
static int nothing(struct sidecore_run *run) {
    (void)run;
    return 0;
}

static const struct sidecore_kernel kernels[] = {
    {"word_sum", 1, 0, BLOCK, create, destroy, word_sum},
    {"nothing", 1, 0, 0, NULL, NULL, nothing},
};

SIDECORE_KERNEL_MODULE(kernels)
