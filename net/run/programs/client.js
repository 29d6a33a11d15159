// 500 requests to server.js over 20 kept connections; prints `right` or what is wrong.
'use strict';
const http = require('http');
const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
let left = 500;
for (let i = 0; i < 500; i++) {
  const body = Buffer.alloc(i * 100, 'x');
  const options = { host: process.argv[2], port: 8088, path: "/" + i, method: "POST", agent };
  const request = http.request(options, response => {
    let text = '';
    response.on('data', part => text += part);
    response.on('end', () => {
      if (text !== `/${i} ${i * 100}`) { console.error('wrong', i, text); process.exit(1); }
      if (--left === 0) { console.log('right'); process.exit(0); }
    });
  });
  request.on('error', error => { console.error(error); process.exit(1); });
  request.end(body);
}
