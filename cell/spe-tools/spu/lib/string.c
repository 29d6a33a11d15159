/* Memory and strings. Blocks are moved by the processor's string instruction, which needs few bytes of
 * the store and moves whole lines. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

void *memcpy(void *to, const void *from, size_t count)
{
	void *at = to;
	__asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(count) : : "memory");
	return to;
}

void *mempcpy(void *to, const void *from, size_t count) { return (char *)memcpy(to, from, count) + count; }

void *memmove(void *to, const void *from, size_t count)
{
	char *into = to;
	const char *of = from;
	if (into <= of || into >= of + count)
		return memcpy(to, from, count);
	while (count >= 16) {
		typedef long long wide __attribute__((vector_size(16), aligned(1), may_alias));
		count -= 16;
		*(wide *)(into + count) = *(const wide *)(of + count);
	}
	while (count--)
		into[count] = of[count];
	return to;
}

void *memset(void *to, int byte, size_t count)
{
	void *at = to;
	__asm__ volatile("rep stosb" : "+D"(at), "+c"(count) : "a"(byte) : "memory");
	return to;
}

void bzero(void *to, size_t count) { memset(to, 0, count); }
void bcopy(const void *from, void *to, size_t count) { memmove(to, from, count); }

int memcmp(const void *left, const void *right, size_t count)
{
	const unsigned char *a = left, *b = right;
	for (; count--; a++, b++)
		if (*a != *b)
			return *a - *b;
	return 0;
}

int bcmp(const void *left, const void *right, size_t count) { return memcmp(left, right, count); }

void *memchr(const void *in, int byte, size_t count)
{
	const unsigned char *at = in;
	for (; count--; at++)
		if (*at == (unsigned char)byte)
			return (void *)at;
	return 0;
}

size_t strlen(const char *text)
{
	const char *at = text;
	while (*at)
		at++;
	return at - text;
}

size_t strnlen(const char *text, size_t most)
{
	size_t length = 0;
	while (length < most && text[length])
		length++;
	return length;
}

char *strcpy(char *to, const char *from)
{
	memcpy(to, from, strlen(from) + 1);
	return to;
}

char *stpcpy(char *to, const char *from)
{
	size_t length = strlen(from);
	memcpy(to, from, length + 1);
	return to + length;
}

char *strncpy(char *to, const char *from, size_t count)
{
	size_t length = strnlen(from, count);
	memcpy(to, from, length);
	memset(to + length, 0, count - length);
	return to;
}

char *strcat(char *to, const char *from)
{
	strcpy(to + strlen(to), from);
	return to;
}

char *strncat(char *to, const char *from, size_t count)
{
	char *end = to + strlen(to);
	size_t length = strnlen(from, count);
	memcpy(end, from, length);
	end[length] = 0;
	return to;
}

int strncmp(const char *left, const char *right, size_t count)
{
	for (; count--; left++, right++) {
		if (*left != *right)
			return (unsigned char)*left - (unsigned char)*right;
		if (!*left)
			break;
	}
	return 0;
}

int strcmp(const char *left, const char *right) { return strncmp(left, right, SIZE_MAX); }
int strcoll(const char *left, const char *right) { return strcmp(left, right); }

static int lower(int byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

int strncasecmp(const char *left, const char *right, size_t count)
{
	for (; count--; left++, right++) {
		int a = lower((unsigned char)*left), b = lower((unsigned char)*right);
		if (a != b)
			return a - b;
		if (!a)
			break;
	}
	return 0;
}

int strcasecmp(const char *left, const char *right) { return strncasecmp(left, right, SIZE_MAX); }

char *strchr(const char *text, int byte)
{
	for (;; text++) {
		if (*text == (char)byte)
			return (char *)text;
		if (!*text)
			return 0;
	}
}

char *index(const char *text, int byte) { return strchr(text, byte); }

char *strrchr(const char *text, int byte)
{
	const char *found = 0;
	for (;; text++) {
		if (*text == (char)byte)
			found = text;
		if (!*text)
			return (char *)found;
	}
}

char *rindex(const char *text, int byte) { return strrchr(text, byte); }

char *strstr(const char *text, const char *part)
{
	size_t length = strlen(part);
	for (;; text++) {
		if (!strncmp(text, part, length))
			return (char *)text;
		if (!*text)
			return 0;
	}
}

size_t strspn(const char *text, const char *set)
{
	size_t length = 0;
	while (text[length] && strchr(set, text[length]))
		length++;
	return length;
}

size_t strcspn(const char *text, const char *set)
{
	size_t length = 0;
	while (text[length] && !strchr(set, text[length]))
		length++;
	return length;
}

char *strpbrk(const char *text, const char *set)
{
	text += strcspn(text, set);
	return *text ? (char *)text : 0;
}

char *strtok_r(char *text, const char *set, char **rest)
{
	char *end;
	if (!text)
		text = *rest;
	text += strspn(text, set);
	if (!*text) {
		*rest = text;
		return 0;
	}
	end = text + strcspn(text, set);
	*rest = *end ? end + 1 : end;
	*end = 0;
	return text;
}

char *strtok(char *text, const char *set)
{
	static char *rest = "";
	return strtok_r(text, set, &rest);
}

extern void *malloc(size_t);

char *strdup(const char *text)
{
	size_t length = strlen(text) + 1;
	char *copy = malloc(length);
	return copy ? memcpy(copy, text, length) : 0;
}
