/* Each file of the arguments is refused; the line on the standard error says why. */
#include "host.h"

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		errno = 0;
		CHECK(!spe_image_open(arguments[i]));
		CHECK(errno == EINVAL);
	}
	return 0;
}
