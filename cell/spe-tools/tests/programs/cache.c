/* Software-managed caches that are smaller than the 64 KiB of data behind them: argp names bytes that
 * each have their place's number. */
#include <stdio.h>
#include <spu_mfcio.h>

/* 2 KiB, read and written. */
#define CACHE_NAME words
#define CACHED_TYPE unsigned int
#define CACHELINE_LOG2SIZE 7
#define CACHE_LOG2NWAY 2
#define CACHE_LOG2NSETS 2
#define CACHE_SET_TAGID(set) (9 + (set) % 4)
#define CACHE_READ_X4
#define CACHE_STATS
#include <cache-api.h>

/* One line of 16 bytes, read alone. */
#define CACHE_NAME bytes
#define CACHED_TYPE unsigned char
#define CACHE_TYPE CACHE_TYPE_RO
#define CACHELINE_LOG2SIZE 4
#define CACHE_LOG2NWAY 0
#define CACHE_LOG2NSETS 0
#include <cache-api.h>

typedef struct {
	unsigned short a[3];
	unsigned char b[10];
} record;

/* The defaults, for structures. */
#define CACHE_NAME records
#define CACHED_TYPE record
#include <cache-api.h>

enum { BYTES = 1 << 16, WORDS = BYTES / 4 };

static unsigned int line[32] __attribute__((aligned(128)));

int main(unsigned long long id, unsigned long long argp)
{
	unsigned int each, place, bad = 0, *pointer;
	vec_uint4 four = {4, 4 * 1000, 4 * 5, 4 * 9000};
	record one;
	for (each = 0; each < BYTES; each += 7)
		bad += cache_rd(bytes, argp + each) != (each & 255);
	/* A walk that leaves no line alone; then each word is what it was, and its place's number. */
	for (each = 0, place = 0; each < WORDS; each++, place = (place + 4099) % WORDS) {
		unsigned int word = cache_rd(words, argp + 4 * place);
		bad += (word & 255) != (4 * place & 255);
		cache_wr(words, argp + 4 * place, word + place);
	}
	/* A line that is locked stays where it is. */
	pointer = cache_touch(words, (unsigned int)argp);
	cache_wait(words, pointer);
	cache_lock(words, pointer);
	for (each = 0; each < BYTES; each += 128)
		(void)cache_rd(words, argp + each);
	bad += *pointer != 0x03020100;
	*pointer = 77;
	cache_unlock(words, pointer);
	*cache_rw(words, argp + 128) = 78;
	cache_flush(words);
	for (each = 0; each < BYTES; each += 128) {
		mfc_get(line, argp + each, 128, 0, 0, 0);
		mfc_write_tag_mask(1);
		mfc_read_tag_status_all();
		for (place = each / 4; place < each / 4 + 32; place++) {
			unsigned int first = 4 * place & 255;
			unsigned int was = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
			unsigned int is = place == 0 ? 77 : place == 32 ? 78 : was + place;
			bad += line[place % 32] != is;
		}
	}
	four = cache_rd_x4(words, spu_add(four, (unsigned int)argp));
	for (each = 0; each < 4; each++)
		bad += spu_extract(four, each)
		       != cache_rd(words, argp + (each == 0 ? 4 : each == 1 ? 4000 : each == 2 ? 20 : 36000));
	one = cache_rd(records, argp + 16 * 16);
	bad += one.b[9] != cache_rd(bytes, argp + 16 * 16 + 15);
	one.b[9] = 9;
	cache_wr(records, argp + 16 * 16, one);
	cache_flush(records);
	(void)cache_rd(bytes, argp);
	bad += cache_rd(bytes, argp + 16 * 16 + 15) != 9;
	cache_pr_stats(words);
	cache_pr_stats(records);
	return bad;
}
