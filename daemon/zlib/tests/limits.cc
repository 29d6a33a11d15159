// A program that zlib serves though its allocator throws, or though it may only read and write.
// One word says which; the answer is one line.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/seccomp.h>
#include <unistd.h>
#include <zlib.h>

static unsigned char raw[1 << 20], made[1 << 21], back[1 << 20];
static long allowed;

extern "C" {
static void *take(void *, unsigned items, unsigned size) {
  if (allowed-- <= 0) throw std::bad_alloc();
  return malloc(size_t(items) * size);
}
static void give(void *, void *memory) { free(memory); }
static unsigned no_input(void *, unsigned char **) { throw 5; }
static int no_output(void *, unsigned char *, unsigned) { throw 6; }
}

static bool reads_back(uLong bytes) {
  uLongf length = sizeof back;
  return uncompress(back, &length, made, bytes) == Z_OK && length == sizeof raw &&
         !memcmp(raw, back, length);
}

static int deflate_with(z_stream &stream, long more, unsigned bytes, int flush) {
  stream.next_in = raw + stream.total_in;
  stream.avail_in = bytes;
  stream.next_out = made + stream.total_out;
  stream.avail_out = sizeof made - stream.total_out;
  allowed = more;
  try {
    return deflate(&stream, flush);
  } catch (std::bad_alloc &) {
    return 100;
  }
}

// Wherever the allocator throws, the exception arrives, nothing is lost, and nothing leaks.
static int throws() {
  int caught = 0;
  for (long limit = 0; limit < 12; limit++) {
    z_stream stream = {};
    stream.zalloc = take;
    stream.zfree = give;
    allowed = limit;
    int code = 100;
    try {
      code = deflateInit(&stream, 6);
    } catch (std::bad_alloc &) {
      caught++;
      continue;
    }
    if (code != Z_OK) return 1;
    // A small flush: the way of the stream changes, and wants memory.
    code = deflate_with(stream, limit - 3, 1000, Z_SYNC_FLUSH);
    caught += code == 100;
    code = deflate_with(stream, 1000, sizeof raw - stream.total_in, Z_FINISH);
    if (code != Z_STREAM_END || !reads_back(stream.total_out)) return 2;
    if (deflateEnd(&stream) != Z_OK) return 3;
  }
  z_stream stream = {};
  unsigned char window[32768];
  inflateBackInit(&stream, 15, window);
  try {
    inflateBack(&stream, no_input, nullptr, no_output, nullptr);
    return 4;
  } catch (int thrown) {
    if (thrown != 5) return 5;
  }
  stream.next_in = made + 2;
  stream.avail_in = 1000;
  try {
    inflateBack(&stream, no_input, nullptr, no_output, nullptr);
  } catch (int thrown) {
    caught += thrown >= 5;
  }
  inflateBackEnd(&stream);
  printf("caught %s\n", caught > 3 ? "several" : "too few");
  return 0;
}

// A stream of a parent goes on in its child, and another ends in the parent.
static int forks() {
  z_stream stream = {};
  deflateInit(&stream, 6);
  deflate_with(stream, 0, 300000, Z_NO_FLUSH);
  if (fork() == 0) {
    int code = deflate_with(stream, 0, sizeof raw - stream.total_in, Z_FINISH);
    _exit(code == Z_STREAM_END && reads_back(stream.total_out) ? 0 : 1);
  }
  return 0;
}

// Takes what malloc holds, so that it has to ask the kernel for anything larger than a page or two.
static void fill() {
#ifdef __GLIBC__
  static void *volatile taken;
  while (mallinfo().keepcost > 6 << 10) taken = malloc(4 << 10);
#endif
}

static void sandboxed(int step) {
  z_stream stream = {}, other = {};
  if (step == 0) {
    deflateInit(&stream, 6);
    // Streams of two levels take turns; the other has got its level behind its beginning.
    deflateInit(&other, 1);
    deflateParams(&other, 9, Z_DEFAULT_STRATEGY);
  } else {
    uLongf bytes = sizeof made;
    compress2(made, &bytes, raw, sizeof raw, 6);
    inflateInit(&stream);
    stream.next_in = made;
    stream.avail_in = bytes;
    stream.next_out = back;
    stream.avail_out = sizeof back;
    fill();
  }
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(2);
  int code;
  if (step == 0) {
    code = deflate_with(stream, 0, sizeof raw / 2, Z_NO_FLUSH);
    if (code == Z_OK) code = deflate_with(other, 0, sizeof raw, Z_FINISH);
    if (code == Z_STREAM_END) code = deflate_with(stream, 0, sizeof raw - stream.total_in, Z_FINISH);
  } else {
    code = inflate(&stream, Z_FINISH);
  }
  if (code == Z_STREAM_END) (void)!write(1, "done\n", 5);
  syscall(SYS_exit, code != Z_STREAM_END);
}

int main(int count, char **words) {
  for (unsigned at = 0; at < sizeof raw; at++) raw[at] = "etaoin shrdlu abc"[(at * 2654435761u >> 13) % 17];
  if (count != 2) return 9;
  if (!strcmp(words[1], "throws")) return throws();
  if (!strcmp(words[1], "forks")) return forks();
  sandboxed(strcmp(words[1], "deflates") != 0);
}
