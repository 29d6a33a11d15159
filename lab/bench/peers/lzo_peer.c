/*
 * lzo_peer: runs liblzo2 in a program of its own, for tests and benchmarks of our LZO1X.
 *
 * Why a program: liblzo2 is GPL; Sidecore never links it. Tests and benchmarks build this file with
 * `cc -O2 lzo_peer.c -llzo2` and speak to it through files. Nothing else may call it.
 *
 * All integers are 32-bit little-endian. A "raw file" is a list of {raw_len, raw bytes}; a "stream
 * file" is a list of {raw_len, stream_len, stream bytes}; a "result file" is a list of {status,
 * out_len, out bytes}, status being liblzo2's own (0 is LZO_E_OK).
 *
 *   lzo_peer compress1 | compress999   RAW_FILE STREAM_FILE
 *   lzo_peer decompress-safe           STREAM_FILE RESULT_FILE   (raw_len is the room it may fill)
 *   lzo_peer bench                     STREAM_FILE REPETITIONS   (prints the seconds of the
 *                                                                fastest pass)
 *
 * Exit status: 0 done, 1 a stream that had to be good was not, 2 could not run.
 */
#include <lzo/lzo1x.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(int status, const char *what, const char *name)
{
    fprintf(stderr, "lzo_peer: %s: %s\n", what, name);
    exit(status);
}

static unsigned char *slurp(const char *name, size_t *len)
{
    FILE *f = fopen(name, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0)
        die(2, "cannot open", name);
    long size = ftell(f);
    rewind(f);
    unsigned char *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        die(2, "cannot read", name);
    fclose(f);
    *len = (size_t)size;
    return data;
}

static uint32_t get32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(FILE *f, uint32_t v)
{
    unsigned char b[4] = {v & 255, v >> 8 & 255, v >> 16 & 255, v >> 24};
    fwrite(b, 1, 4, f);
}

/* Takes `len` bytes at `*pos`, or ends the program: the list is cut short. */
static const unsigned char *take(const unsigned char *data, size_t size, size_t *pos, size_t len)
{
    if (size - *pos < len)
        die(2, "list cut short", "input");
    const unsigned char *p = data + *pos;
    *pos += len;
    return p;
}

static int compress(const char *mode, const char *from, const char *to)
{
    size_t size, pos = 0;
    unsigned char *data = slurp(from, &size);
    unsigned char *work = malloc(LZO1X_999_MEM_COMPRESS);
    FILE *f = fopen(to, "wb");
    if (!f || !work)
        die(2, "cannot write", to);
    while (pos < size) {
        uint32_t raw_len = get32(take(data, size, &pos, 4));
        const unsigned char *raw = take(data, size, &pos, raw_len);
        lzo_uint out_len = raw_len + raw_len / 16 + 67;
        unsigned char *out = malloc(out_len);
        int rc = strcmp(mode, "compress1") == 0
                     ? lzo1x_1_compress(raw, raw_len, out, &out_len, work)
                     : lzo1x_999_compress(raw, raw_len, out, &out_len, work);
        if (rc != LZO_E_OK)
            die(1, "compressing failed", from);
        put32(f, raw_len);
        put32(f, (uint32_t)out_len);
        fwrite(out, 1, out_len, f);
        free(out);
    }
    return fclose(f) == 0 ? 0 : 2;
}

static int decompress(const char *from, const char *to)
{
    size_t size, pos = 0;
    unsigned char *data = slurp(from, &size);
    FILE *f = fopen(to, "wb");
    if (!f)
        die(2, "cannot write", to);
    while (pos < size) {
        uint32_t room = get32(take(data, size, &pos, 4));
        uint32_t len = get32(take(data, size, &pos, 4));
        const unsigned char *stream = take(data, size, &pos, len);
        lzo_uint out_len = room;
        unsigned char *out = malloc(room ? room : 1);
        int rc = lzo1x_decompress_safe(stream, len, out, &out_len, NULL);
        put32(f, (uint32_t)rc);
        put32(f, (uint32_t)out_len);
        fwrite(out, 1, out_len, f);
        free(out);
    }
    return fclose(f) == 0 ? 0 : 2;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench(const char *from, int repetitions)
{
    size_t size, room = 1;
    unsigned char *data = slurp(from, &size);
    for (size_t pos = 0; pos < size;) {
        uint32_t raw_len = get32(take(data, size, &pos, 4));
        take(data, size, &pos, get32(take(data, size, &pos, 4)));
        if (raw_len > room)
            room = raw_len;
    }
    unsigned char *out = malloc(room);
    double best = 1e300;
    for (int i = 0; i < repetitions; i++) {
        double start = now();
        for (size_t pos = 0; pos < size;) {
            uint32_t raw_len = get32(data + pos), len = get32(data + pos + 4);
            lzo_uint out_len = raw_len;
            int status = lzo1x_decompress_safe(data + pos + 8, len, out, &out_len, NULL);
            if (status != LZO_E_OK || out_len != raw_len)
                die(1, "a stream does not inflate", from);
            pos += 8 + (size_t)len;
        }
        double took = now() - start;
        if (took < best)
            best = took;
    }
    printf("%.9f\n", best);
    return 0;
}

int main(int argc, char **argv)
{
    if (lzo_init() != LZO_E_OK)
        die(2, "lzo_init failed", "liblzo2");
    if (argc == 4 && (!strcmp(argv[1], "compress1") || !strcmp(argv[1], "compress999")))
        return compress(argv[1], argv[2], argv[3]);
    if (argc == 4 && !strcmp(argv[1], "decompress-safe"))
        return decompress(argv[2], argv[3]);
    if (argc == 4 && !strcmp(argv[1], "bench") && atoi(argv[3]) > 0)
        return bench(argv[2], atoi(argv[3]));
    fprintf(stderr,
            "usage: lzo_peer compress1|compress999|decompress-safe|bench IN OUT|REPETITIONS\n");
    return 2;
}
