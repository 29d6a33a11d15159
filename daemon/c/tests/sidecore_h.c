/* Calls two kernels, tells its parent, and goes on calling until the daemon is gone; then does the
 * last call itself. Exit status 0 where every result was right. */
#include "sidecore.h"

#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
    fprintf(stderr, "sidecore_h.c: %s\n", what);
    return 1;
}

/* Buffers of all sizes, freed in another order: the arena must come back whole. */
static int allocates(struct sidecore *sc) {
    struct sidecore_buffer held[8], whole;
    uint32_t seed = 1;
    int index, round;
    memset(held, 0, sizeof held);
    for (round = 0; round < 10; round++) { /* more than the arena holds, one after the other */
        struct sidecore_buffer buffer = sidecore_alloc(sc, 50000);
        if (!buffer.data)
            return 0;
        memset(buffer.data, round, buffer.bytes);
        sidecore_free(&buffer);
        if (buffer.data || buffer.bytes)
            return 0;
    }
    for (round = 0; round < 2000; round++) {
        struct sidecore_buffer *buffer;
        size_t at;
        seed = seed * 1664525u + 1013904223u;
        buffer = &held[seed >> 29];
        for (at = 0; at < buffer->bytes; at++)
            if (((unsigned char *)buffer->data)[at] != (unsigned char)(buffer - held))
                return 0;
        sidecore_free(buffer);
        *buffer = sidecore_alloc(sc, (seed >> 8) % 12000);
        if (buffer->data)
            memset(buffer->data, (int)(buffer - held), buffer->bytes);
    }
    if (sidecore_alloc(sc, SIZE_MAX).data || sidecore_alloc(sc, SIZE_MAX - 100).data)
        return 0;
    for (index = 0; index < 8; index++) {
        struct sidecore_buffer copy = held[index];
        sidecore_free(&held[index]);
        if (index == 0) /* of a copy, too: nothing happens */
            sidecore_free(&copy);
    }
    whole = sidecore_alloc(sc, 1 << 16);
    if (!whole.data)
        return 0;
    sidecore_free(&whole);
    return 1;
}

/* A call that was given up while memory has run out says so, and can be rescued later. */
static int rescues(struct sidecore *sc) {
    struct sidecore_buffer out = sidecore_alloc(sc, 100);
    struct sidecore_request rq;
    void *was = out.data;
    size_t bytes = out.bytes;
    memset(&rq, 0, sizeof rq);
    memset(out.data, 7, out.bytes);
    rq.outputs[rq.output_count++] = &out;
    out.bytes = (size_t)1 << 62; /* no malloc gives that */
    if (sidecore_rescue(&rq) != SIDECORE_NO_MEMORY || out.data != was || out.own)
        return 0;
    out.bytes = bytes;
    if (sidecore_rescue(&rq) != SIDECORE_LOST || out.data == was || !out.own)
        return 0;
    if (((unsigned char *)out.data)[99] != 7)
        return 0;
    sidecore_free(&out);
    return 1;
}

int main(int argc, char **argv) {
    struct sidecore *sc;
    struct sidecore_options options;
    struct sidecore_buffer in, out;
    double expected = 0, sum;
    unsigned char *bytes;
    int index, kernel_sum, kernel_echo, error, lost = 0;
    long calls = 0;
    if (argc != 2)
        return fail("usage: SOCKET");
    if (sidecore_attach(&sc, "/nowhere/at/all", 1 << 16) != -ENOENT || sc)
        return fail("attached to nobody");
    memset(&options, 0, sizeof options);
    options.path = argv[1];
    options.arena_bytes = 1 << 16;
    if (sidecore_attach_with(&sc, &options) != -EINVAL)
        return fail("options without a size");
    options.size = sizeof options;
    options.silence_ms = 60000; /* a busy machine is no dead daemon */
    error = sidecore_attach_with(&sc, &options);
    if (error)
        return fail(sidecore_attach_text(error));
    kernel_sum = sidecore_kernel(sc, "sum_f64");
    kernel_echo = sidecore_kernel(sc, "echo");
    if (kernel_sum < 0 || kernel_echo < 0 || sidecore_kernel(sc, "nothing") != -ENOENT)
        return fail("kernels");
    if (!allocates(sc))
        return fail("the allocator");
    if (!rescues(sc))
        return fail("a rescue");
    in = sidecore_alloc(sc, 1000 * sizeof(double));
    out = sidecore_alloc(sc, 1000 * sizeof(double));
    if (!in.data || !out.data || sidecore_alloc(sc, 1 << 16).data)
        return fail("the arena");
    for (index = 0; index < 1000; index++) {
        ((double *)in.data)[index] = index;
        expected += index;
    }
    {
        struct sidecore_request rq;
        struct sidecore_buffer small = out;
        memset(&rq, 0, sizeof rq);
        small.bytes = 1;
        rq.inputs[rq.input_count++] = &in;
        rq.outputs[rq.output_count++] = &small;
        if (sidecore_call(sc, kernel_echo, &rq) != SIDECORE_FAILED ||
            !strstr(rq.text, "do not fit"))
            return fail("an echo that does not fit");
    }
    while (!lost) {
        struct sidecore_request rq;
        memset(&rq, 0, sizeof rq);
        rq.inputs[rq.input_count++] = &in;
        if (calls % 2 == 0) {
            error = sidecore_call_on(sc, (uint32_t)(calls / 2 % sidecore_engines(sc)), kernel_sum,
                                     &rq);
            memcpy(&sum, &rq.reply[0], sizeof sum);
            if (error == SIDECORE_DONE && sum != expected)
                return fail("a sum");
        } else {
            memset(out.data, (int)calls, out.bytes);
            rq.outputs[rq.output_count++] = &out;
            error = sidecore_call(sc, kernel_echo, &rq);
            lost = error == SIDECORE_LOST;
            if (lost)
                memcpy(out.data, in.data, in.bytes); /* the host version */
            if (memcmp(out.data, in.data, in.bytes) != 0)
                return fail("an echo");
        }
        lost = error == SIDECORE_LOST;
        if (error != SIDECORE_DONE && !lost)
            return fail("a call");
        if (++calls == 100) {
            puts("ready");
            fflush(stdout);
        }
    }
    bytes = (unsigned char *)out.data;
    bytes[0] ^= 1;
    printf("%ld calls, then on its own\n", calls);
    sidecore_free(&in);
    if (sidecore_alloc(sc, 1).data)
        return fail("memory that a lost daemon may still write to");
    sidecore_detach(sc);
    sidecore_free(&out); /* after its client's end, too */
    return 0;
}
