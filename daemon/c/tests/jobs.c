/* Keeps as many jobs open as there may be, waits for them in each of the ways, takes some back, and
 * goes on until the daemon is gone, with jobs open. Exit status 0 where every result was right. */
#include "sidecore.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
    fprintf(stderr, "jobs.c: %s\n", what);
    return 1;
}

#define BYTES 64

/* An echo of one byte, from `in` in 16 pieces or in one, into `out`. */
static int submit(struct sidecore *sc, struct sidecore_buffer *in, struct sidecore_buffer *out,
                  uint64_t token, uint64_t *id) {
    struct sidecore_job job;
    memset(&job, 0, sizeof job);
    memset(in->data, (int)token, BYTES);
    memset(out->data, ~(int)token, BYTES);
    job.token = token;
    job.kernel = sidecore_kernel(sc, "echo");
    job.segments[0].buffer = in;
    job.segments[0].bytes = BYTES;
    job.input_count = 1;
    job.segments[1].buffer = out;
    job.segments[1].bytes = BYTES;
    job.output_count = 1;
    return sidecore_submit(sc, &job, id);
}

static int is_right(const struct sidecore_buffer *out, uint64_t token) {
    size_t at;
    for (at = 0; at < BYTES; at++)
        if (((unsigned char *)out->data)[at] != (unsigned char)token)
            return 0;
    return 1;
}

static struct sidecore_buffer in[SIDECORE_JOBS], out[SIDECORE_JOBS];

int main(int argc, char **argv) {
    struct sidecore_options options;
    struct sidecore_outcome outcome;
    struct sidecore_job spin;
    struct sidecore *sc;
    struct pollfd polled;
    uint64_t id, posted, ended;
    int error, lost = 0, cancelled = 0, many = 0;
    if (argc != 2)
        return fail("usage: SOCKET");
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.path = argv[1];
    options.arena_bytes = 1 << 20;
    options.silence_ms = 60000; /* a busy machine is no dead daemon */
    error = sidecore_attach_with(&sc, &options);
    if (error)
        return fail(sidecore_attach_text(error));
    for (posted = 0; posted < SIDECORE_JOBS; posted++) {
        in[posted] = sidecore_alloc(sc, BYTES);
        out[posted] = sidecore_alloc(sc, BYTES);
        if (!in[posted].data || !out[posted].data)
            return fail("the arena");
    }
    if (sidecore_poll(sc, &outcome) || sidecore_wait(sc, &outcome, -1))
        return fail("an outcome of nothing");

    /* All at once. */
    for (posted = 0; posted < SIDECORE_JOBS; posted++)
        if (submit(sc, &in[posted], &out[posted], posted, NULL) != SIDECORE_DONE)
            return fail("a submission");
    if (submit(sc, &in[0], &out[0], 0, NULL) != SIDECORE_FULL)
        return fail("one too many");
    for (ended = 0; sidecore_wait(sc, &outcome, -1); ended++) {
        uint64_t token = outcome.token;
        if (outcome.status != SIDECORE_DONE)
            return fail("an outcome");
        /* The one that was too many has overwritten the first. */
        if (token && !is_right(&out[token], token))
            return fail("an echo");
    }
    if (ended != SIDECORE_JOBS)
        return fail("outcomes are missing");

    /* With the descriptor; and what makes no sense. */
    polled.fd = sidecore_descriptor(sc);
    polled.events = POLLIN;
    if (polled.fd < 0)
        return fail("the descriptor");
    for (posted = 0; posted < 100; posted++)
        if (submit(sc, &in[posted], &out[posted], posted + 1, &id) != SIDECORE_DONE)
            return fail("a submission");
    for (ended = 0; ended < 100;) {
        if (sidecore_poll(sc, &outcome)) {
            if (outcome.status != SIDECORE_DONE ||
                !is_right(&out[outcome.token - 1], outcome.token))
                return fail("an echo by the descriptor");
            ended++;
        } else if (poll(&polled, 1, 60000) != 1) {
            return fail("the descriptor stays silent");
        }
    }
    memset(&spin, 0, sizeof spin);
    spin.kernel = sidecore_kernel(sc, "echo");
    spin.input_count = 17;
    if (sidecore_submit(sc, &spin, NULL) != SIDECORE_INVALID)
        return fail("17 segments");
    spin.input_count = 1;
    if (sidecore_submit(sc, &spin, NULL) != SIDECORE_INVALID)
        return fail("no buffer");
    spin.segments[0].buffer = &in[0];
    spin.segments[0].bytes = BYTES + 1;
    if (sidecore_submit(sc, &spin, NULL) != SIDECORE_INVALID)
        return fail("beyond a buffer");
    memset(&spin, 0, sizeof spin);
    spin.kernel = sidecore_kernel(sc, "sum_f64");
    for (; many < SIDECORE_SEGMENTS; many++) {
        spin.segments[many].buffer = &in[many];
        spin.segments[many].bytes = 8;
    }
    spin.input_count = many;
    sidecore_free(&out[SIDECORE_JOBS - 1]); /* room for the list */
    sidecore_free(&in[SIDECORE_JOBS - 1]);
    if (sidecore_submit(sc, &spin, NULL) != SIDECORE_DONE || !sidecore_wait(sc, &outcome, -1)
        || outcome.status != SIDECORE_DONE)
        return fail("16 segments");

    /* Two that run long, and jobs behind them: taken back, then lost. */
    memset(&spin, 0, sizeof spin);
    spin.kernel = sidecore_kernel(sc, "spin_us");
    spin.words[0] = 900000;
    spin.token = 1000000;
    if (sidecore_submit(sc, &spin, NULL) || sidecore_submit(sc, &spin, NULL))
        return fail("a long job");
    for (posted = 0; posted < 500; posted++) {
        if (submit(sc, &in[posted], &out[posted], posted, &id) != SIDECORE_DONE)
            return fail("a submission");
        if (posted % 10 == 0)
            cancelled += sidecore_cancel(sc, id);
    }
    puts("ready");
    fflush(stdout);
    for (ended = 0; sidecore_wait(sc, &outcome, -1); ended++) {
        struct sidecore_buffer *to = &out[outcome.token % SIDECORE_JOBS];
        if (outcome.token == 1000000)
            continue;
        if (outcome.status == SIDECORE_CANCELLED) {
            cancelled--;
            continue;
        }
        if (outcome.status == SIDECORE_LOST) {
            lost++;
            if (!to->own)
                return fail("an output that was lost has not moved");
            memcpy(to->data, in[outcome.token].data, BYTES); /* the host version */
        } else if (outcome.status != SIDECORE_DONE) {
            return fail("the end of a job");
        }
        if (!is_right(to, outcome.token))
            return fail("an echo after the daemon's end");
    }
    if (ended != 502 || cancelled)
        return fail("outcomes are missing after the daemon's end");
    if (submit(sc, &in[0], &out[500], 0, NULL) != SIDECORE_LOST)
        return fail("a submission to nobody");
    printf("%d lost, then done here\n", lost);
    for (posted = 0; posted < 600; posted++) {
        sidecore_free(&in[posted]);
        sidecore_free(&out[posted]);
    }
    sidecore_detach(sc);
    for (; posted < SIDECORE_JOBS; posted++)
        sidecore_free(&out[posted]); /* after its client's end, too */
    return 0;
}
