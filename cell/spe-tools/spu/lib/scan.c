/* Formatted input from memory and streams. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct source {
	const char *text;	/* 0: a stream */
	FILE *stream;
	int taken;
};

static int take(struct source *source)
{
	int byte = source->text ? (unsigned char)*source->text : fgetc(source->stream);
	if (source->text && byte == 0)
		return EOF;
	if (source->text)
		source->text++;
	source->taken += byte != EOF;
	return byte;
}

static void back(struct source *source, int byte)
{
	if (byte == EOF)
		return;
	source->taken--;
	if (source->text)
		source->text--;
	else
		ungetc(byte, source->stream);
}

static int blank(int byte) { return byte == ' ' || (byte >= 9 && byte <= 13); }

static int skip(struct source *source)
{
	int byte;
	do
		byte = take(source);
	while (blank(byte));
	back(source, byte);
	return byte;
}

enum { NUMBER_MAX = 64 };

/* The longest text that could be a number of the kind. */
static int number_text(struct source *source, char *text, int width, int real)
{
	int length = 0, byte;
	if (width <= 0 || width > NUMBER_MAX - 1)
		width = NUMBER_MAX - 1;
	while (length < width) {
		byte = take(source);
		if (!(byte >= '0' && byte <= '9') && !strchr(real ? "+-.eEinfatyxXpPbcdBCD" : "+-xXabcdefABCDEF", byte)) {
			back(source, byte);
			break;
		}
		if (byte == EOF)
			break;
		if ((byte == '+' || byte == '-') && length && !strchr("eEpP", text[length - 1])) {
			back(source, byte);
			break;
		}
		text[length++] = byte;
	}
	text[length] = 0;
	return length;
}

/* Gives back what of the number's text was not of the number. */
static void give_back(struct source *source, const char *text, const char *end)
{
	const char *last = text + strlen(text);
	while (last > end)
		back(source, (unsigned char)*--last);
}

static int scan(struct source *source, const char *format, va_list list)
{
	int done = 0, byte;
	for (; *format; format++) {
		int skips = 0, width = 0, size = 2, base = 10, length;
		char text[NUMBER_MAX], *end;
		unsigned char set[256];
		if (blank(*format)) {
			skip(source);
			continue;
		}
		if (*format != '%' || *++format == '%') {
			if (*format == '%')
				skip(source);
			byte = take(source);
			if (byte != (unsigned char)*format) {
				back(source, byte);
				return byte == EOF && !done ? EOF : done;
			}
			continue;
		}
		if (*format == '*')
			skips = 1, format++;
		while (*format >= '0' && *format <= '9')
			width = width * 10 + *format++ - '0';
		for (;; format++) {
			if (*format == 'h')
				size--;
			else if (*format == 'l')
				size = format[1] == 'l' ? 4 : size == 4 ? 4 : 3;
			else if (*format == 'q' || *format == 'L' || *format == 'j')
				size = 4;
			else if (*format != 'z' && *format != 't')
				break;
		}
		if (*format != 'c' && *format != '[' && *format != 'n' && skip(source) == EOF)
			return done ? done : EOF;
		switch (*format) {
		case 'n':
			*va_arg(list, int *) = source->taken;
			break;
		case 'i':
			base = 0;
		case 'd':
		case 'u':
		case 'x':
		case 'X':
		case 'o':
		case 'p': {
			unsigned long long value;
			if (*format == 'x' || *format == 'X' || *format == 'p')
				base = 16;
			if (*format == 'o')
				base = 8;
			if (!number_text(source, text, width, 0))
				return done;
			value = *text == '-' ? (unsigned long long)strtoll(text, &end, base)
				: strtoull(text, &end, base);
			give_back(source, text, end);
			if (end == text)
				return done;
			if (skips)
				break;
			if (size == 4)
				*va_arg(list, unsigned long long *) = value;
			else if (size >= 2)
				*va_arg(list, unsigned int *) = value;
			else if (size == 1)
				*va_arg(list, unsigned short *) = value;
			else
				*va_arg(list, unsigned char *) = value;
			done++;
			break;
		}
		case 'a':
		case 'A':
		case 'e':
		case 'f':
		case 'g':
		case 'E':
		case 'G': {
			double value;
			if (!number_text(source, text, width, 1))
				return done;
			value = strtod(text, &end);
			give_back(source, text, end);
			if (end == text)
				return done;
			if (skips)
				break;
			if (size == 2)
				*va_arg(list, float *) = value;
			else
				*va_arg(list, double *) = value;
			done++;
			break;
		}
		case 'c':
		case 's':
		case '[': {
			/* Wide characters are words. */
			char *to = skips ? 0 : va_arg(list, char *);
			int *words = size == 3 ? (int *)to : 0;
			memset(set, 1, sizeof set);
			if (*format == 's') {
				for (length = 0; length < 256; length++)
					set[length] = !blank(length);
			} else if (*format == '[') {
				int not = *++format == '^';
				if (not)
					format++;
				memset(set, not, sizeof set);
				do {
					unsigned char first = *format, last = first;
					if (format[1] == '-' && format[2] != ']' && format[2])
						last = *(format += 2);
					for (;; first++) {
						set[first] = !not;
						if (first >= last)
							break;
					}
				} while (*++format && *format != ']');
			} else if (!width) {
				width = 1;
			}
			for (length = 0; !width || length < width; length++) {
				byte = take(source);
				if (byte == EOF || !set[byte]) {
					back(source, byte);
					break;
				}
				if (words)
					*words++ = byte;
				else if (to)
					*to++ = byte;
			}
			if (!length)
				return byte == EOF && !done ? EOF : done;
			if (to) {
				if (*format != 'c' && words)
					*words = 0;
				else if (*format != 'c')
					*to = 0;
				done++;
			}
			break;
		}
		default:
			return done;
		}
	}
	return done;
}

extern int memory_scan(const char *, const char *, va_list) __asm__("__isoc99_vsscanf");
extern int stream_scan(FILE *, const char *, va_list) __asm__("__isoc99_vfscanf");

int memory_scan(const char *text, const char *format, va_list list)
{
	struct source source = { text, 0, 0 };
	return scan(&source, format, list);
}

int stream_scan(FILE *stream, const char *format, va_list list)
{
	struct source source = { 0, stream, 0 };
	return scan(&source, format, list);
}

extern int input_scan(const char *, va_list) __asm__("__isoc99_vscanf");
int input_scan(const char *format, va_list list) { return stream_scan(stdin, format, list); }

#define FORWARD(name, parameters, call)                                                            \
	int name parameters                                                                        \
	{                                                                                          \
		va_list list;                                                                      \
		int result;                                                                        \
		va_start(list, format);                                                            \
		result = call;                                                                     \
		va_end(list);                                                                      \
		return result;                                                                     \
	}

#undef sscanf
#undef fscanf
#undef scanf
FORWARD(__isoc99_sscanf, (const char *text, const char *format, ...), memory_scan(text, format, list))
FORWARD(__isoc99_fscanf, (FILE *stream, const char *format, ...), stream_scan(stream, format, list))
FORWARD(__isoc99_scanf, (const char *format, ...), stream_scan(stdin, format, list))

/* The same under the names of other standards, which headers choose between. */
__asm__(".globl sscanf, fscanf, scanf, vsscanf, vfscanf, vscanf\n"
	".set vscanf, __isoc99_vscanf\n"
	".set sscanf, __isoc99_sscanf\n"
	".set fscanf, __isoc99_fscanf\n"
	".set scanf, __isoc99_scanf\n"
	".set vsscanf, __isoc99_vsscanf\n"
	".set vfscanf, __isoc99_vfscanf\n"
	".globl __isoc23_sscanf, __isoc23_fscanf, __isoc23_scanf\n"
	".set __isoc23_sscanf, __isoc99_sscanf\n"
	".set __isoc23_fscanf, __isoc99_fscanf\n"
	".set __isoc23_scanf, __isoc99_scanf\n");
