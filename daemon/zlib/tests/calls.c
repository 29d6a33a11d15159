/* What a C program may rely on in zlib, call by call: gz files with their positions, printf and
 * push back; a full flush that a damaged stream is read on from; inflateBack; copies; checksums
 * combined. Linked against the system's zlib; a preloaded library must do as well. Ends at the first
 * call that does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define NEED(condition)                                                     \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

static const char text[] = "a text, and a text again, of a few words";

static void files(void) {
  char line[200];
  gzFile file = gzopen("file.gz", "wb9");
  NEED(file);
  NEED(gzputc(file, 'x') == 'x');
  NEED(gzputs(file, "yz\n") == 3);
  NEED(gzprintf(file, "%s %d %.2f %c%s\n", "number", 42, 2.5, '!', "?") == 18);
  NEED(gzflush(file, Z_SYNC_FLUSH) == Z_OK);
  NEED(gzsetparams(file, 1, Z_DEFAULT_STRATEGY) == Z_OK);
  NEED(gzwrite(file, text, sizeof text) == (int)sizeof text);
  NEED(gzfwrite(text, 5, 8, file) == 8);
  NEED(gzseek(file, 1000, SEEK_CUR) > 0);
  NEED(gzputs(file, "end") == 3);
  NEED(gzclose(file) == Z_OK);

  file = gzopen("file.gz", "rb");
  NEED(file);
  NEED(gzbuffer(file, 65536) == 0);
  NEED(gzgets(file, line, sizeof line) == line && strcmp(line, "xyz\n") == 0);
  NEED(gzgets(file, line, sizeof line) == line && strcmp(line, "number 42 2.50 !?\n") == 0);
  NEED(gztell(file) == 22);
  NEED(gzread(file, line, sizeof text) == (int)sizeof text && memcmp(line, text, sizeof text) == 0);
  NEED(gzungetc('u', file) == 'u' && gzgetc(file) == 'u');
  NEED(gzseek(file, 0, SEEK_SET) == 0 && gzgetc(file) == 'x');
  NEED(gzseek(file, 22 + sizeof text + 40 + 1000, SEEK_SET) > 0);
  NEED(gzread(file, line, 100) == 3 && memcmp(line, "end", 3) == 0);
  NEED(gzeof(file) && !gzdirect(file) && gzrewind(file) == 0);
  int code;
  gzerror(file, &code);
  NEED(code == Z_OK);
  NEED(gzprintf(file, "%d", 1) == Z_STREAM_ERROR);
  gzerror(file, &code);
  NEED(code == Z_OK);
  NEED(gzclose_r(file) == Z_OK);
  remove("file.gz");
}

/* What printf returns where the disk is full, and where buffers may still be chosen. */
static void failures(void) {
  gzFile file = gzopen("/dev/full", "wb0");
  int put = 1, tries = 0;
  NEED(file && gzbuffer(file, 64) == 0);
  while (put > 0 && ++tries < 10000) put = gzprintf(file, "%s", text);
  NEED(put == Z_ERRNO);
  NEED(gzprintf(file, "%d", 1) == Z_STREAM_ERROR);
  NEED(gzprintf(file, "%s", "") == Z_STREAM_ERROR);
  gzclose(file);

  file = gzopen("file.gz", "wb");
  NEED(file && gzseek(file, 0, SEEK_CUR) == 0 && gzbuffer(file, 4096) == 0);
  NEED(gzseek(file, 100, SEEK_SET) == 100 && gzbuffer(file, 8192) == 0);
  NEED(gzprintf(file, "%s", "") == 0 && gzprintf(file, "%s", "end") == 3);
  NEED(gztell(file) == 103 && gzbuffer(file, 8192) == -1);
  NEED(gzclose(file) == Z_OK);
  remove("file.gz");
}

/* A stream whose first part, up to a full flush, is damaged: what follows can be had. */
static void resynchronize(void) {
  unsigned char stream[500], out[500];
  z_stream z;
  memset(&z, 0, sizeof z);
  NEED(deflateInit(&z, Z_DEFAULT_COMPRESSION) == Z_OK);
  z.next_in = (z_const unsigned char *)text;
  z.avail_in = 4;
  z.next_out = stream;
  z.avail_out = sizeof stream;
  NEED(deflate(&z, Z_FULL_FLUSH) == Z_OK && z.avail_in == 0);
  NEED(deflate(&z, Z_FULL_FLUSH) == Z_BUF_ERROR);
  stream[3]++;
  z.avail_in = sizeof text - 4;
  NEED(deflate(&z, Z_FINISH) == Z_STREAM_END);
  NEED(deflateEnd(&z) == Z_OK);
  uLong bytes = z.total_out;

  memset(&z, 0, sizeof z);
  z.next_in = stream;
  z.avail_in = 2;
  NEED(inflateInit(&z) == Z_OK);
  z.next_out = out;
  z.avail_out = sizeof out;
  NEED(inflate(&z, Z_NO_FLUSH) == Z_OK);
  z.avail_in = (uInt)bytes - 2;
  NEED(inflateSync(&z) == Z_OK);
  NEED(inflate(&z, Z_FINISH) == Z_STREAM_END);
  NEED(inflateEnd(&z) == Z_OK);
  NEED(memcmp(out, text + 4, sizeof text - 4) == 0);
}

struct range {
  unsigned char *start;
  unsigned bytes;
};

static unsigned give(void *from, z_const unsigned char **next) {
  struct range *range = from;
  unsigned bytes = range->bytes;
  *next = range->start;
  range->bytes = 0;
  return bytes;
}

static int take(void *to, unsigned char *from, unsigned bytes) {
  struct range *range = to;
  memcpy(range->start + range->bytes, from, bytes);
  range->bytes += bytes;
  return 0;
}

static void call_back(void) {
  unsigned char stream[500], out[500], window[32768];
  z_stream z;
  memset(&z, 0, sizeof z);
  NEED(deflateInit2(&z, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  z.next_in = (z_const unsigned char *)text;
  z.avail_in = sizeof text;
  z.next_out = stream;
  z.avail_out = sizeof stream;
  NEED(deflate(&z, Z_FINISH) == Z_STREAM_END && deflateEnd(&z) == Z_OK);
  struct range in = {stream, (unsigned)z.total_out}, to = {out, 0};
  memset(&z, 0, sizeof z);
  NEED(inflateBackInit(&z, 15, window) == Z_OK);
  NEED(inflateBack(&z, give, &in, take, &to) == Z_STREAM_END);
  NEED(inflateBackEnd(&z) == Z_OK);
  NEED(to.bytes == sizeof text && memcmp(out, text, sizeof text) == 0);
}

static void large(void) {
  uLong bytes = 3000000, bound = compressBound(bytes), again = bytes;
  unsigned char *raw = malloc(bytes), *stream = malloc(bound), *out = malloc(bytes);
  NEED(raw && stream && out);
  unsigned state = 1;
  for (uLong at = 0; at < bytes; at++) {
    state = state * 1103515245 + 12345;
    raw[at] = (unsigned char)"abcdefgh"[state >> 29] ^ (unsigned char)(at >> 16);
  }
  NEED(compress2(stream, &bound, raw, bytes, 9) == Z_OK);
  NEED(uncompress(out, &again, stream, bound) == Z_OK);
  NEED(again == bytes && memcmp(raw, out, bytes) == 0);
  NEED(uncompress(out, &again, stream, bound - 1) == Z_BUF_ERROR ||
       uncompress(out, &again, stream, bound - 1) == Z_DATA_ERROR);
  again = bytes - 1;
  NEED(uncompress(out, &again, stream, bound) == Z_BUF_ERROR);
  free(raw);
  free(stream);
  free(out);
}

static void checksums(void) {
  const unsigned char *bytes = (const unsigned char *)text;
  uLong all = crc32(0, bytes, 30), left = crc32(0, bytes, 11), right = crc32(0, bytes + 11, 19);
  NEED(crc32_combine(left, right, 19) == all && crc32(left, bytes + 11, 19) == all);
  uLong start = adler32(0, Z_NULL, 0);
  NEED(start == 1 && crc32(0, Z_NULL, 0) == 0);
  all = adler32(start, bytes, 30);
  left = adler32(start, bytes, 11);
  right = adler32(start, bytes + 11, 19);
  NEED(adler32_combine(left, right, 19) == all);
  NEED(get_crc_table()[1] == 0x77073096);
}

int main(void) {
  NEED(zlibVersion()[0] == ZLIB_VERSION[0]);
  NEED(strcmp(zError(Z_DATA_ERROR), "data error") == 0);
  files();
  failures();
  resynchronize();
  call_back();
  large();
  checksums();
  puts("all calls");
  return 0;
}
