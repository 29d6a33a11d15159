/* Texts of error numbers, and perror. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
	unsigned char number;
	const char *text;
} texts[] = {
	{ 0, "Success" },
	{ EPERM, "Operation not permitted" },
	{ ENOENT, "No such file or directory" },
	{ EINTR, "Interrupted system call" },
	{ EIO, "Input/output error" },
	{ ENXIO, "No such device or address" },
	{ E2BIG, "Argument list too long" },
	{ EBADF, "Bad file descriptor" },
	{ ECHILD, "No child processes" },
	{ EAGAIN, "Resource temporarily unavailable" },
	{ ENOMEM, "Cannot allocate memory" },
	{ EACCES, "Permission denied" },
	{ EFAULT, "Bad address" },
	{ EBUSY, "Device or resource busy" },
	{ EEXIST, "File exists" },
	{ EXDEV, "Invalid cross-device link" },
	{ ENODEV, "No such device" },
	{ ENOTDIR, "Not a directory" },
	{ EISDIR, "Is a directory" },
	{ EINVAL, "Invalid argument" },
	{ ENFILE, "Too many open files in system" },
	{ EMFILE, "Too many open files" },
	{ ENOTTY, "Inappropriate ioctl for device" },
	{ EFBIG, "File too large" },
	{ ENOSPC, "No space left on device" },
	{ ESPIPE, "Illegal seek" },
	{ EROFS, "Read-only file system" },
	{ EPIPE, "Broken pipe" },
	{ EDOM, "Numerical argument out of domain" },
	{ ERANGE, "Numerical result out of range" },
	{ ENAMETOOLONG, "File name too long" },
	{ ENOSYS, "Function not implemented" },
	{ ENOTEMPTY, "Directory not empty" },
};

char *strerror(int number)
{
	static char other[24];
	unsigned each;
	for (each = 0; each < sizeof texts / sizeof *texts; each++)
		if (texts[each].number == number)
			return (char *)texts[each].text;
	sprintf(other, "Unknown error %d", number);
	return other;
}

void perror(const char *text)
{
	const char *reason = strerror(errno);
	if (text && *text) {
		fputs(text, stderr);
		fputs(": ", stderr);
	}
	fputs(reason, stderr);
	fputs("\n", stderr);
}
