/* getopt: options of programs that stand alone. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

char *optarg;
int optind = 1, opterr = 1, optopt = '?';

static int complain(char *const *arguments, const char *options, const char *what, int option)
{
	optopt = option;
	if (*options == ':')
		return *what == 'o' ? ':' : '?';
	if (opterr)
		fprintf(stderr, "%s: %s -- '%c'\n", arguments[0], what, option);
	return '?';
}

int getopt(int count, char *const *arguments, const char *options)
{
	/* The next letter of a word of several. */
	static const char *letters;
	const char *found;
	int option;
	if (optind == 0) {
		optind = 1;
		letters = 0;
	}
	if (!letters || !*letters) {
		if (optind >= count || arguments[optind][0] != '-' || !arguments[optind][1])
			return -1;
		if (!strcmp(arguments[optind], "--")) {
			optind++;
			return -1;
		}
		letters = arguments[optind++] + 1;
	}
	option = (unsigned char)*letters++;
	found = option == ':' ? 0 : strchr(options, option);
	optarg = 0;
	if (!found)
		return complain(arguments, options, "invalid option", option);
	if (found[1] != ':')
		return option;
	if (*letters)
		optarg = (char *)letters;
	else if (found[2] != ':' && optind < count)
		optarg = arguments[optind++];
	else if (found[2] != ':')
		return complain(arguments, options, "option requires an argument", option);
	letters = 0;
	return option;
}
