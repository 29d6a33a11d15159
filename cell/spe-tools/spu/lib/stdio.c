/* Streams are the host's: each call is a callback, so that the host's and the store's output meet in one
 * buffer in the order in which they were made. A FILE pointer is the host's number of the stream. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "call.h"
#include "format.h"

FILE *stdin = (FILE *)1;
FILE *stdout = (FILE *)2;
FILE *stderr = (FILE *)3;

enum {
	CLEARERR = 1, FCLOSE, FEOF, FERROR, FFLUSH, FGETC, FGETPOS, FGETS, FILENO, FOPEN, FPUTC, FPUTS,
	FREAD, FREOPEN, FSEEK, FSETPOS, FTELL, FWRITE, GETC, GETCHAR, GETS, PERROR, PUTC, PUTCHAR, PUTS,
	REMOVE, RENAME, REWIND, SETBUF, SETVBUF, SYSTEM, TMPFILE, TMPNAM, UNGETC,
};

static u32 call(int operation, u32 a, u32 b, u32 c, u32 d)
{
	struct slot slots[SLOTS_MAX];
	memset(slots, 0, sizeof slots);
	slots[0].word[0] = a;
	slots[1].word[0] = b;
	slots[2].word[0] = c;
	slots[3].word[0] = d;
	return __sidecore_callback(STOP_C99, operation, slots);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream)
{
	return call(FWRITE, (u32)data, size, count, (u32)stream);
}

size_t fread(void *data, size_t size, size_t count, FILE *stream)
{
	return call(FREAD, (u32)data, size, count, (u32)stream);
}

FILE *fopen(const char *path, const char *mode)
{
	return (FILE *)call(FOPEN, (u32)path, (u32)mode, 0, 0);
}

FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	return (FILE *)call(FREOPEN, (u32)path, (u32)mode, (u32)stream, 0);
}

FILE *tmpfile(void) { return (FILE *)call(TMPFILE, 0, 0, 0, 0); }
int fclose(FILE *stream) { return call(FCLOSE, (u32)stream, 0, 0, 0); }
int feof(FILE *stream) { return call(FEOF, (u32)stream, 0, 0, 0); }
int ferror(FILE *stream) { return call(FERROR, (u32)stream, 0, 0, 0); }
void clearerr(FILE *stream) { call(CLEARERR, (u32)stream, 0, 0, 0); }
int fflush(FILE *stream) { return call(FFLUSH, (u32)stream, 0, 0, 0); }
int fgetc(FILE *stream) { return call(FGETC, (u32)stream, 0, 0, 0); }
int getc(FILE *stream) { return fgetc(stream); }
int getchar(void) { return fgetc(stdin); }
int ungetc(int byte, FILE *stream) { return call(UNGETC, byte, (u32)stream, 0, 0); }
int fileno(FILE *stream) { return call(FILENO, (u32)stream, 0, 0, 0); }
int fputc(int byte, FILE *stream) { return call(FPUTC, byte, (u32)stream, 0, 0); }
int putc(int byte, FILE *stream) { return fputc(byte, stream); }
int putchar(int byte) { return fputc(byte, stdout); }
int fputs(const char *text, FILE *stream) { return call(FPUTS, (u32)text, (u32)stream, 0, 0); }
long ftell(FILE *stream) { return call(FTELL, (u32)stream, 0, 0, 0); }
void rewind(FILE *stream) { call(REWIND, (u32)stream, 0, 0, 0); }
int remove(const char *path) { return call(REMOVE, (u32)path, 0, 0, 0); }
int rename(const char *from, const char *to) { return call(RENAME, (u32)from, (u32)to, 0, 0); }
int system(const char *command) { return call(SYSTEM, (u32)command, 0, 0, 0); }
int puts(const char *text) { return call(PUTS, (u32)text, 0, 0, 0); }

int fseek(FILE *stream, long offset, int from)
{
	return call(FSEEK, (u32)stream, offset, from, 0);
}

char *fgets(char *text, int size, FILE *stream)
{
	return call(FGETS, (u32)text, size, (u32)stream, 0) ? text : 0;
}

/* Of a line without its end; the host knows no size. */
char *gets(char *text) { return call(GETS, (u32)text, 0, 0, 0) ? text : 0; }

int fgetpos(FILE *stream, fpos_t *place)
{
	long now = ftell(stream);
	place->__pos = now;
	return now < 0 ? -1 : 0;
}

int fsetpos(FILE *stream, const fpos_t *place) { return fseek(stream, place->__pos, SEEK_SET); }
char *tmpnam(char *name) { return call(TMPNAM, (u32)name, 0, 0, 0) ? name : 0; }

int setvbuf(FILE *stream, char *buffer, int mode, size_t size)
{
	/* The host's buffer stays its own: one in the store would go with the context. */
	return call(SETVBUF, (u32)stream, 0, mode, size);
}

void setbuf(FILE *stream, char *buffer)
{
	setvbuf(stream, 0, buffer ? _IOFBF : _IONBF, BUFSIZ);
}

enum { BUFFER_BYTES = 256 };

static void flush(struct sink *sink, char *buffer)
{
	int length = sink->at - buffer;
	if (length > 0 && fwrite(buffer, 1, length, (FILE *)sink->stream) != (size_t)length)
		sink->failed = 1;
	sink->at = buffer;
	sink->room = BUFFER_BYTES;
}

static void to_stream(struct sink *sink, const char *text, int length)
{
	while (length > 0) {
		int part = length < sink->room ? length : sink->room;
		memcpy(sink->at, text, part);
		sink->at += part;
		sink->room -= part;
		text += part;
		length -= part;
		if (sink->room == 0)
			flush(sink, sink->at - BUFFER_BYTES);
	}
}

static void to_memory(struct sink *sink, const char *text, int length)
{
	int part = length < sink->room ? length : sink->room;
	if (part > 0) {
		memcpy(sink->at, text, part);
		sink->at += part;
		sink->room -= part;
	}
}

int vfprintf(FILE *stream, const char *format, va_list list)
{
	char buffer[BUFFER_BYTES];
	struct sink sink = { to_stream, buffer, BUFFER_BYTES, 0, (int)stream, 0 };
	__sidecore_format(&sink, format, list);
	flush(&sink, buffer);
	return sink.failed ? -1 : sink.total;
}

int vsnprintf(char *text, size_t size, const char *format, va_list list)
{
	int most = size > 0x7fffffff ? 0x7fffffff : (int)size;
	struct sink sink = { to_memory, text, most - 1, 0, 0, 0 };
	__sidecore_format(&sink, format, list);
	if (size > 0)
		*sink.at = 0;
	return sink.total;
}

int vprintf(const char *format, va_list list) { return vfprintf(stdout, format, list); }

int vsprintf(char *text, const char *format, va_list list)
{
	return vsnprintf(text, 0x7fffffff, format, list);
}

#define FORWARD(CALL)                                                                              \
	va_list list;                                                                              \
	int result;                                                                                \
	va_start(list, format);                                                                    \
	result = CALL;                                                                             \
	va_end(list);                                                                              \
	return result

int printf(const char *format, ...) { FORWARD(vfprintf(stdout, format, list)); }
int fprintf(FILE *stream, const char *format, ...) { FORWARD(vfprintf(stream, format, list)); }
int sprintf(char *text, const char *format, ...) { FORWARD(vsnprintf(text, 0x7fffffff, format, list)); }
int snprintf(char *text, size_t size, const char *format, ...)
{
	FORWARD(vsnprintf(text, size, format, list));
}

/* Small variants of the SPU's library: without floating point there, the same here. */
int iprintf(const char *format, ...) { FORWARD(vfprintf(stdout, format, list)); }
int siprintf(char *text, const char *format, ...) { FORWARD(vsnprintf(text, 0x7fffffff, format, list)); }
int fiprintf(FILE *stream, const char *format, ...) { FORWARD(vfprintf(stream, format, list)); }
