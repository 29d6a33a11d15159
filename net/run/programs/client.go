// 800 requests to server.go by 40 goroutines; prints `right` or what is wrong.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

func main() {
	var all sync.WaitGroup
	for i := 0; i < 40; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for turn := 0; turn < 20; turn++ {
				sent := bytes.Repeat([]byte{byte(i), byte(turn)}, 500*(turn+1))
				answer, err := http.Post("http://"+os.Args[1]+":8091/", "text/plain", bytes.NewReader(sent))
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				got, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || !bytes.Equal(got, sent) {
					fmt.Println("wrong", len(got), err)
					os.Exit(1)
				}
			}
		}(i)
	}
	all.Wait()
	fmt.Println("right")
}
