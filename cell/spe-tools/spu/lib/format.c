/* Formatted output into a sink, within the store: the host's library would need the caller's list of
 * arguments, whose layout is not the host's.
 *
 * Decimals of a double are exact: its integer and fraction are kept as digits to base 10^9.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "format.h"

enum { LEFT = 1, PLUS = 2, SPACE = 4, ALTERNATE = 8, ZERO = 16, UPPER = 32, VECTOR = 64 };

struct field {
	int flags;
	int width;
	int precision;	/* below 0: none given */
	char separator;	/* between a vector's elements; 0: the conversion's own */
};

static void put(struct sink *sink, const char *text, int length)
{
	sink->total += length;
	sink->write(sink, text, length);
}

static void pad(struct sink *sink, char with, int count)
{
	char blanks[16];
	memset(blanks, with, sizeof blanks);
	for (; count > 0; count -= (int)sizeof blanks)
		put(sink, blanks, count < (int)sizeof blanks ? count : (int)sizeof blanks);
}

/* A number's parts, padded to the field's width. */
static void put_number(struct sink *sink, const struct field *field, const char *prefix, int zeros,
		       const char *digits, int length)
{
	int before = strlen(prefix);
	int fill = field->width - before - zeros - length;
	if (!(field->flags & (LEFT | ZERO)))
		pad(sink, ' ', fill);
	put(sink, prefix, before);
	if ((field->flags & (LEFT | ZERO)) == ZERO)
		pad(sink, '0', fill);
	pad(sink, '0', zeros);
	put(sink, digits, length);
	if (field->flags & LEFT)
		pad(sink, ' ', fill);
}

static void put_integer(struct sink *sink, struct field *field, unsigned long long value, int base,
			const char *sign)
{
	char digits[24];
	char *at = digits + sizeof digits;
	const char *names = field->flags & UPPER ? "0123456789ABCDEF" : "0123456789abcdef";
	int length, zeros;
	char prefix[3];
	strcpy(prefix, sign);
	if (base == 16 && (field->flags & ALTERNATE) && value)
		strcpy(prefix, field->flags & UPPER ? "0X" : "0x");
	if (value >> 32 == 0) {
		/* Words divide several times as fast as doublewords. */
		unsigned int word = value;
		for (; word; word /= base)
			*--at = names[word % base];
	} else {
		for (; value; value /= base)
			*--at = names[value % base];
	}
	length = digits + sizeof digits - at;
	if (field->precision < 0 && length == 0)
		*--at = '0', length = 1;
	if (base == 8 && (field->flags & ALTERNATE) && (length == 0 || *at != '0'))
		*--at = '0', length++;
	zeros = field->precision > length ? field->precision - length : 0;
	if (field->precision >= 0)
		field->flags &= ~ZERO;
	put_number(sink, field, prefix, zeros, at, length);
}

enum { BASE = 1000000000, LIMB_DIGITS = 9, LIMBS = 160, DIGITS_MAX = 1100 };

/* Digits of a double: `point` of them stand before the decimal point (it may be 0 or less), `count` in
 * all, rounded to nearest, ties to even, so that `after` stand behind the point, or `significant` in all
 * where that is above 0. */
static int to_digits(double value, int after, int significant, char *digits, int *point)
{
	static unsigned int limbs[LIMBS];
	union {
		double value;
		unsigned long long bits;
	} view;
	unsigned long long mantissa;
	int exponent, first, last, count, keep, each;
	unsigned int carry;

	view.value = value;
	exponent = (int)(view.bits >> 52 & 0x7ff);
	mantissa = view.bits & 0xfffffffffffffULL;
	if (exponent)
		mantissa |= 1ULL << 52;
	else
		exponent = 1;
	exponent -= 1075;
	if (!mantissa) {
		*point = 1;
		digits[0] = '0';
		return 1;
	}
	/* The integer's limbs lie from `first` to before MIDDLE, the fraction's from there to `last`. */
	enum { MIDDLE = 36 };
	memset(limbs, 0, sizeof limbs);
	limbs[MIDDLE - 1] = mantissa % BASE;
	limbs[MIDDLE - 2] = mantissa / BASE;
	first = MIDDLE - 2;
	last = MIDDLE;
	for (; exponent > 0; exponent -= each) {
		unsigned long long over = 0;
		int at;
		each = exponent > 29 ? 29 : exponent;
		for (at = MIDDLE - 1; at >= first; at--) {
			unsigned long long product = ((unsigned long long)limbs[at] << each) + over;
			limbs[at] = product % BASE;
			over = product / BASE;
		}
		if (over)
			limbs[--first] = over;
	}
	for (; exponent < 0; exponent += each) {
		unsigned long long rest = 0;
		int at;
		each = exponent < -9 ? 9 : -exponent;
		for (at = first; at < last; at++) {
			unsigned int low = limbs[at] & ((1u << each) - 1);
			limbs[at] = (limbs[at] >> each) + (unsigned int)rest;
			rest = (unsigned long long)low * (BASE >> each);
		}
		if (rest && last < LIMBS)
			limbs[last++] = rest;
		while (first < MIDDLE && !limbs[first])
			first++;
	}
	while (first < last && !limbs[first])
		first++;
	count = 0;
	for (each = first; each < last && count + LIMB_DIGITS <= DIGITS_MAX; each++) {
		unsigned int limb = limbs[each];
		int digit;
		for (digit = LIMB_DIGITS - 1; digit >= 0; digit--, limb /= 10)
			digits[count + digit] = '0' + limb % 10;
		count += LIMB_DIGITS;
	}
	*point = (MIDDLE - first) * LIMB_DIGITS;
	for (each = 0; each < count - 1 && digits[each] == '0';)
		each++;
	memmove(digits, digits + each, count - each);
	count -= each;
	*point -= each;
	keep = significant > 0 ? significant : *point + after;
	if (keep < 0) {
		*point = -after;
		digits[0] = '0';
		return 0;
	}
	if (keep >= count)
		return count;
	/* Half or more is carried; a half alone to an even digit. */
	carry = digits[keep] > '5';
	if (digits[keep] == '5') {
		for (each = keep + 1; each < count && digits[each] == '0';)
			each++;
		carry = each < count || (keep > 0 && (digits[keep - 1] & 1));
	}
	for (each = keep - 1; carry && each >= 0; each--) {
		carry = digits[each] == '9';
		digits[each] = carry ? '0' : digits[each] + 1;
	}
	if (carry) {
		memmove(digits + 1, digits, keep);
		digits[0] = '1';
		*point += 1;
		keep += significant > 0 ? 0 : 1;
	}
	return keep;
}

/* The text of a double by %e, %f or %g, without its sign. */
static int double_text(char *text, double value, const struct field *field, char kind)
{
	static char digits[DIGITS_MAX + 2];
	int precision = field->precision < 0 ? 6 : field->precision;
	int general = kind == 'g';
	int point, count, length = 0, each, exponent;

	if (precision > DIGITS_MAX - 340)
		precision = DIGITS_MAX - 340;
	if (general) {
		if (precision == 0)
			precision = 1;
		count = to_digits(value, 0, precision, digits, &point);
		exponent = value == 0 ? 0 : point - 1;
		if (exponent < -4 || exponent >= precision) {
			kind = 'e';
			precision -= 1;
		} else {
			kind = 'f';
			precision -= exponent + 1;
		}
		if (!(field->flags & ALTERNATE)) {
			while (count > 0 && digits[count - 1] == '0')
				count--;
			each = kind == 'e' ? count - 1 : count - point;
			if (each < precision)
				precision = each < 0 ? 0 : each;
		}
	} else if (kind == 'e') {
		count = to_digits(value, 0, precision + 1, digits, &point);
		exponent = value == 0 ? 0 : point - 1;
	} else {
		count = to_digits(value, precision, 0, digits, &point);
		exponent = 0;
	}
	if (kind == 'e') {
		text[length++] = count > 0 ? digits[0] : '0';
		if (precision > 0 || (field->flags & ALTERNATE))
			text[length++] = '.';
		for (each = 1; each <= precision; each++)
			text[length++] = each < count ? digits[each] : '0';
		text[length++] = field->flags & UPPER ? 'E' : 'e';
		text[length++] = exponent < 0 ? '-' : '+';
		if (exponent < 0)
			exponent = -exponent;
		if (exponent >= 100)
			text[length++] = '0' + exponent / 100;
		text[length++] = '0' + exponent / 10 % 10;
		text[length++] = '0' + exponent % 10;
		return length;
	}
	if (point <= 0)
		text[length++] = '0';
	for (each = 0; each < point; each++)
		text[length++] = each < count ? digits[each] : '0';
	if (precision > 0 || (field->flags & ALTERNATE))
		text[length++] = '.';
	for (each = point; each < point + precision; each++)
		text[length++] = each >= 0 && each < count ? digits[each] : '0';
	return length;
}

/* The text by %a: the mantissa's 13 digits, rounded to nearest, ties to even. */
static int hexadecimal_text(char *text, double value, const struct field *field)
{
	const char *names = field->flags & UPPER ? "0123456789ABCDEF" : "0123456789abcdef";
	union {
		double value;
		unsigned long long bits;
	} view = { value };
	unsigned long long mantissa = view.bits & 0xfffffffffffffULL;
	int exponent = (int)(view.bits >> 52 & 0x7ff), precision = field->precision, length = 0, each;
	unsigned long long first = exponent ? 1 : 0;

	exponent = value == 0 ? 0 : exponent ? exponent - 1023 : -1022;
	if (precision < 0) {
		for (precision = 13; precision > 0 && !(mantissa >> (52 - 4 * precision) & 15); precision--)
			;
	} else if (precision < 13) {
		unsigned long long unit = 1ULL << (52 - 4 * precision), rest;
		mantissa |= first << 52;
		rest = mantissa & (unit - 1);
		mantissa -= rest;
		if (rest > unit / 2 || (rest == unit / 2 && mantissa & unit))
			mantissa += unit;
		first = mantissa >> 52;
		mantissa &= 0xfffffffffffffULL;
	}
	text[length++] = '0';
	text[length++] = field->flags & UPPER ? 'X' : 'x';
	text[length++] = '0' + first;
	if (precision > 0 || field->flags & ALTERNATE)
		text[length++] = '.';
	for (each = 1; each <= precision && each < DIGITS_MAX; each++)
		text[length++] = each <= 13 ? names[mantissa >> (52 - 4 * each) & 15] : '0';
	text[length++] = field->flags & UPPER ? 'P' : 'p';
	text[length++] = exponent < 0 ? '-' : '+';
	if (exponent < 0)
		exponent = -exponent;
	if (exponent >= 1000)
		text[length++] = '0' + exponent / 1000;
	if (exponent >= 100)
		text[length++] = '0' + exponent / 100 % 10;
	if (exponent >= 10)
		text[length++] = '0' + exponent / 10 % 10;
	text[length++] = '0' + exponent % 10;
	return length;
}

static void put_double(struct sink *sink, struct field *field, double value, char kind)
{
	static char text[DIGITS_MAX + 400];
	const char *sign = signbit(value) ? "-" : field->flags & PLUS ? "+"
		: field->flags & SPACE ? " " : "";
	const char *name = 0;
	if (value < 0)
		value = -value;
	if (value != value)
		name = field->flags & UPPER ? "NAN" : "nan";
	else if (value > 1.79769313486231570815e308)
		name = field->flags & UPPER ? "INF" : "inf";
	if (name) {
		field->flags &= ~ZERO;
		put_number(sink, field, sign, 0, name, 3);
	} else {
		if (value == 0)
			value = 0; /* without its sign */
		put_number(sink, field, sign, 0, text, kind == 'a'
			   ? hexadecimal_text(text, value, field)
			   : double_text(text, value, field, kind));
	}
}

static void put_signed(struct sink *sink, struct field *field, long long number)
{
	put_integer(sink, field, number < 0 ? -(unsigned long long)number : (unsigned long long)number, 10,
		    number < 0 ? "-" : field->flags & PLUS ? "+" : field->flags & SPACE ? " " : "");
}

static void put_unsigned(struct sink *sink, struct field *field, unsigned long long number, char kind)
{
	put_integer(sink, field, number, kind == 'u' ? 10 : kind == 'o' ? 8 : 16, "");
}

static void put_character(struct sink *sink, struct field *field, char one)
{
	field->flags &= ~ZERO;
	put_number(sink, field, "", 0, &one, 1);
}

enum { SIZE_CHAR, SIZE_SHORT, SIZE_INT, SIZE_LONG, SIZE_WIDE, SIZE_LONG_DOUBLE };

static const char *size_of(const char *format, int *size, int *flags)
{
	*size = SIZE_INT;
	for (;; format++) {
		switch (*format) {
		case 'h':
			*size = *size == SIZE_SHORT ? SIZE_CHAR : SIZE_SHORT;
			break;
		case 'l':
			*size = SIZE_LONG;
			if (format[1] == 'l')
				*size = SIZE_WIDE, format++;
			break;
		case 'q':
		case 'j':
			*size = SIZE_WIDE;
			break;
		case 'L':
			*size = SIZE_LONG_DOUBLE;
			break;
		case 'v':
			if (*flags & VECTOR)
				*size = SIZE_WIDE; /* vv: two doubles */
			*flags |= VECTOR;
		case 'z':
		case 't':
			break;
		default:
			return format;
		}
	}
}

typedef unsigned char quadword __attribute__((vector_size(16)));

/* The elements of a vector, each as the conversion has it (AltiVec Technology Programming Interface
 * Manual, formatted output). */
static void put_vector(struct sink *sink, const struct field *field, quadword vector, int size, char kind)
{
	union {
		quadword vector;
		signed char bytes[16];
		short halves[8];
		int words[4];
		long long wides[2];
		float floats[4];
		double doubles[2];
	} view = { vector };
	int real = strchr("aefg", kind | 32) != 0, upper = kind < 'a' ? UPPER : 0;
	int bytes = size == SIZE_WIDE || (real && size == SIZE_LONG) ? 8 : size == SIZE_LONG || real ? 4
		: size == SIZE_SHORT ? 2 : 1;
	char separator = field->separator ? field->separator : kind == 'c' ? 0 : ' ';
	int each;

	for (each = 0; each < 16 / bytes; each++) {
		struct field one = *field;
		long long number = bytes == 8 ? view.wides[each] : bytes == 4 ? view.words[each]
			: bytes == 2 ? view.halves[each] : view.bytes[each];
		one.flags |= upper;
		if (each && separator)
			put(sink, &separator, 1);
		if (real)
			put_double(sink, &one, bytes == 8 ? view.doubles[each] : view.floats[each], kind | 32);
		else if (kind == 'c')
			put_character(sink, &one, number);
		else if (kind == 'd' || kind == 'i')
			put_signed(sink, &one, number);
		else
			put_unsigned(sink, &one, number & (~0ULL >> (64 - 8 * bytes)), kind | 32);
	}
}

/* A string of wide characters; the C locale has those below 128. */
static void put_wide(struct sink *sink, struct field *field, const wchar_t *wide)
{
	int length = 0, each;
	while (wide && wide[length] && (field->precision < 0 || length < field->precision))
		length++;
	if (!(field->flags & LEFT))
		pad(sink, ' ', field->width - length);
	for (each = 0; each < length; each++) {
		char one = wide[each];
		put(sink, &one, 1);
	}
	if (field->flags & LEFT)
		pad(sink, ' ', field->width - length);
}

void __sidecore_format(struct sink *sink, const char *format, va_list list)
{
	while (*format) {
		struct field field = { 0, 0, -1, 0 };
		const char *start = format, *text;
		unsigned long long value;
		long long number;
		int size, length;

		while (*format && *format != '%')
			format++;
		if (format != start)
			put(sink, start, format - start);
		if (!*format)
			return;
		for (format++;; format++) {
			if (*format == '-')
				field.flags |= LEFT;
			else if (*format == '+')
				field.flags |= PLUS;
			else if (*format == ' ')
				field.flags |= SPACE;
			else if (*format == '#')
				field.flags |= ALTERNATE;
			else if (*format == '0')
				field.flags |= ZERO;
			else if (*format == ',' || *format == ';' || *format == ':' || *format == '_')
				field.separator = *format;
			else if (*format != '\'')
				break;
		}
		if (*format == '*') {
			format++;
			field.width = va_arg(list, int);
			if (field.width < 0)
				field.flags |= LEFT, field.width = -field.width;
		} else {
			while (*format >= '0' && *format <= '9')
				field.width = field.width * 10 + *format++ - '0';
		}
		if (*format == '.') {
			field.precision = 0;
			if (*++format == '*') {
				format++;
				field.precision = va_arg(list, int);
			} else {
				while (*format >= '0' && *format <= '9')
					field.precision = field.precision * 10 + *format++ - '0';
			}
		}
		format = size_of(format, &size, &field.flags);
		if (field.flags & VECTOR && *format && strchr("diouxXcaAeEfFgG", *format)) {
			put_vector(sink, &field, va_arg(list, quadword), size, *format++);
			continue;
		}
		switch (*format++) {
		case 0:
			return;
		case 'd':
		case 'i':
			number = size == SIZE_WIDE ? va_arg(list, long long) : va_arg(list, int);
			if (size == SIZE_SHORT)
				number = (short)number;
			if (size == SIZE_CHAR)
				number = (signed char)number;
			put_signed(sink, &field, number);
			break;
		case 'X':
			field.flags |= UPPER;
		case 'x':
		case 'u':
		case 'o':
			value = size == SIZE_WIDE ? va_arg(list, unsigned long long)
				: va_arg(list, unsigned int);
			if (size == SIZE_SHORT)
				value = (unsigned short)value;
			if (size == SIZE_CHAR)
				value = (unsigned char)value;
			put_unsigned(sink, &field, value, format[-1] | 32);
			break;
		case 'p':
			field.flags |= ALTERNATE;
			put_integer(sink, &field, (unsigned int)va_arg(list, void *), 16, "");
			break;
		case 'c':
			put_character(sink, &field, va_arg(list, int));
			break;
		case 's':
			if (size == SIZE_LONG) {
				put_wide(sink, &field, va_arg(list, const wchar_t *));
				break;
			}
			text = va_arg(list, const char *);
			if (!text)
				text = "(null)";
			length = field.precision < 0 ? (int)strlen(text)
				: (int)strnlen(text, field.precision);
			field.flags &= ~ZERO;
			put_number(sink, &field, "", 0, text, length);
			break;
		case 'n':
			if (size == SIZE_WIDE)
				*va_arg(list, long long *) = sink->total;
			else if (size == SIZE_SHORT)
				*va_arg(list, short *) = sink->total;
			else if (size == SIZE_CHAR)
				*va_arg(list, signed char *) = sink->total;
			else
				*va_arg(list, int *) = sink->total;
			break;
		case 'A':
		case 'E':
		case 'F':
		case 'G':
			field.flags |= UPPER;
		case 'a':
		case 'e':
		case 'f':
		case 'g':
			put_double(sink, &field, size == SIZE_LONG_DOUBLE
				   ? (double)va_arg(list, long double) : va_arg(list, double),
				   format[-1] | 32);
			break;
		case '%':
			put(sink, "%", 1);
			break;
		default:
			put(sink, format - 1, 1);
			break;
		}
	}
}
