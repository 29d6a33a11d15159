/* gzprintf and gzvprintf: the text is made here, where variable arguments can be taken apart, and
 * written with gzwrite. Like zlib, a text that is too long is refused: 0 bytes. As there, a file that
 * is read, or has failed before, is Z_STREAM_ERROR, and a write that fails its own code.
 * Rust cannot define such functions yet. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* zlib refuses what does not fit the file's buffer (8 KiB unless the program set another). */
enum { STREAM_ERROR = -2, MEM_ERROR = -4, TEXT_BYTES = 1024, TEXT_BYTES_MAX = 1 << 20 };

extern int gzwrite(void *file, const void *bytes, unsigned length);
extern int gzread(void *file, void *bytes, unsigned length);
extern const char *gzerror(void *file, int *code);

int sidecore_z_vprintf(void *file, const char *format, va_list arguments);
int sidecore_z_printf(void *file, const char *format, ...);

int sidecore_z_vprintf(void *file, const char *format, va_list arguments) {
  char small[TEXT_BYTES];
  char *text = small;
  int code = 0;
  if (!file) return STREAM_ERROR;
  gzerror(file, &code);
  /* To read nothing succeeds on files that are read, and on no others. */
  if (code || gzread(file, small, 0) == 0) return STREAM_ERROR;
  va_list again;
  va_copy(again, arguments);
  int bytes = vsnprintf(small, sizeof small, format, arguments);
  int written = 0;
  if (bytes > 0 && bytes < TEXT_BYTES_MAX) {
    if ((unsigned)bytes >= sizeof small) {
      text = malloc((size_t)bytes + 1);
      if (text) vsnprintf(text, (size_t)bytes + 1, format, again);
    }
    written = text ? gzwrite(file, text, (unsigned)bytes) : MEM_ERROR;
    if (text != small) free(text);
    if (!written) {
      gzerror(file, &code);
      written = code;
    }
  }
  va_end(again);
  return written;
}

int sidecore_z_printf(void *file, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = sidecore_z_vprintf(file, format, arguments);
  va_end(arguments);
  return written;
}
