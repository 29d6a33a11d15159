// A cluster of two that answers a request with its path and the length of its body.
'use strict';
const http = require('http'), cluster = require('cluster');
if (cluster.isPrimary) { for (let i = 0; i < 2; i++) cluster.fork(); }
else http.createServer((request, response) => {
  let size = 0;
  request.on('data', part => size += part.length);
  request.on('end', () => response.end(request.url + ' ' + size));
}).listen(8088, process.argv[2]);
