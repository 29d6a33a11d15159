/* Times one way of using zlib on a file, as programs use it, and says what it cost: wall
 * nanoseconds, processor nanoseconds of this process, bytes that came out. Linked against the
 * system's zlib; what a preloaded library makes of the same calls is the other candidate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

enum { PIECE = 64 << 10 };

static void fail(const char *what) {
  fprintf(stderr, "%s failed\n", what);
  exit(1);
}

static double now_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static unsigned char *read_all(const char *path, unsigned long *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail("open");
  *bytes = (unsigned long)ftell(file);
  rewind(file);
  unsigned char *all = malloc(*bytes + 1);
  if (!all || fread(all, 1, *bytes, file) != *bytes) fail("read");
  fclose(file);
  return all;
}

static unsigned long stream(const unsigned char *in, unsigned long bytes, unsigned char *out,
                            unsigned long room, int level) {
  z_stream z;
  memset(&z, 0, sizeof z);
  if ((level ? deflateInit(&z, level) : inflateInit(&z)) != Z_OK) fail("init");
  unsigned long at = 0, made = 0;
  int code = Z_OK;
  while (code != Z_STREAM_END) {
    unsigned long piece = bytes - at < PIECE ? bytes - at : PIECE;
    z.next_in = (unsigned char *)in + at;
    z.avail_in = (uInt)piece;
    unsigned long space = room - made < PIECE ? room - made : PIECE;
    z.next_out = out + made;
    z.avail_out = (uInt)space;
    int flush = level && at + piece == bytes ? Z_FINISH : Z_NO_FLUSH;
    code = level ? deflate(&z, flush) : inflate(&z, flush);
    if (code != Z_OK && code != Z_STREAM_END) fail("stream");
    at += piece - z.avail_in;
    made += space - z.avail_out;
  }
  if (level) deflateEnd(&z);
  else inflateEnd(&z);
  return made;
}

int main(int count, char **words) {
  if (count < 5) fail("usage: compress|uncompress|deflate|inflate LEVEL FROM TO; arguments");
  const char *way = words[1];
  int level = atoi(words[2]);
  unsigned long bytes, room = 64ul << 20, made;
  unsigned char *in = read_all(words[3], &bytes), *out = malloc(room);
  if (!out) fail("malloc");
  memset(out, 1, room);
  double wall = now_ns(CLOCK_MONOTONIC), used = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  made = room;
  if (!strcmp(way, "compress")) {
    if (compress2(out, &made, in, bytes, level) != Z_OK) fail(way);
  } else if (!strcmp(way, "uncompress")) {
    if (uncompress(out, &made, in, bytes) != Z_OK) fail(way);
  } else {
    made = stream(in, bytes, out, room, strcmp(way, "deflate") ? 0 : level);
  }
  used = now_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
  wall = now_ns(CLOCK_MONOTONIC) - wall;
  FILE *file = fopen(words[4], "wb");
  if (!file || fwrite(out, 1, made, file) != made || fclose(file)) fail("write");
  printf("%.0f %.0f %lu\n", wall, used, made);
  return 0;
}
