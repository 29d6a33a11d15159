/* Attaches to an engine that another user pretends to be: exit status 0 where it is refused. */
#include "sidecore_net.h"

int main(int argc, char **argv) {
    struct sidecore_net *net = NULL;
    int error = sidecore_net_attach(&net, argc == 2 ? argv[1] : NULL, 8);
    puts(sidecore_net_attach_text(error));
    sidecore_net_detach(net);
    return error == -SIDECORE_NET_UNTRUSTED ? 0 : 1;
}
