/* Attaches to a daemon that another user pretends to be: exit status 0 where it is refused. */
#include "sidecore.h"

#include <stdio.h>

int main(int argc, char **argv) {
    struct sidecore *sc;
    int error = sidecore_attach(&sc, argc == 2 ? argv[1] : NULL, 4096);
    puts(sidecore_attach_text(error));
    sidecore_detach(sc);
    return error == SIDECORE_UNTRUSTED ? 0 : 1;
}
