"""Reads a file 24 times over HTTP, eight at once; fails where one is not the same."""

import concurrent.futures, sys, urllib.request

wanted = open("files/big", "rb").read()


def get(_):
    return urllib.request.urlopen(f"http://{sys.argv[1]}:8086/big", timeout=30).read() == wanted


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert all(pool.map(get, range(24)))
