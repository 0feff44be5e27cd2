// Command load asks from a number of clients at once, each over one connection that it keeps.
//
// Without -body an operation is a GET of the next URL in turn. With -body it is a POST of that to
// the next URL, and a GET of the Location that the answer names, whose body must be the POST's.
//
// It prints a row of CSV for each operation: when it began and how long it took (seconds), and its
// status: 200, that of the answer that failed, "differs" or "error". All connect before the first
// begins. Of HTTP it knows what the servers here speak, and no more: net/http costs several times
// as much.
//
// With -for it asks for that long instead of -n times, with -alone an operation is the POST alone,
// with -delete what it made is deleted, in place of asked for: 204 and not 200. With -marker an answer
// whose body lacks that text "differs". A header (-H) may have "{client}"
// in it, for the number of the client in four digits, and a body "{number}", for that of the
// request in eight: as many as the placeholder has characters, so the length stays right.
//
// A URL behind "PATCH " is asked to change to the -body; then the others are GETs.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const ok200, created201, noContent204 = 200, 201, 204

type row struct {
	began, took time.Duration
	status      string
}

type client struct {
	address string
	timeout time.Duration
	conn    net.Conn
	reader  *bufio.Reader
}

func (c *client) connect() error {
	conn, err := net.DialTimeout("tcp", c.address, c.timeout)
	if err != nil {
		return err
	}
	c.conn, c.reader = conn, bufio.NewReader(conn)
	return nil
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// ask sends one request and reads all of its answer.
func (c *client) ask(request []byte) (status int, location string, body []byte, err error) {
	if c.conn == nil {
		if err = c.connect(); err != nil {
			return
		}
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err = c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return
	}
	if _, err = c.conn.Write(request); err != nil {
		return
	}
	text := textproto.NewReader(c.reader)
	first, err := text.ReadLine()
	if err != nil {
		return
	}
	if _, err = fmt.Sscanf(first, "HTTP/1.1 %d", &status); err != nil {
		return
	}
	headers, err := text.ReadMIMEHeader()
	if err != nil {
		return
	}
	if headers.Get("Transfer-Encoding") == "chunked" {
		if body, err = io.ReadAll(httputil.NewChunkedReader(c.reader)); err != nil {
			return
		}
		if _, err = text.ReadLine(); err != nil { // the empty line after the last chunk
			return
		}
	} else if status != noContent204 {
		var length int
		length, err = strconv.Atoi(headers.Get("Content-Length"))
		if err != nil {
			return
		}
		body = make([]byte, length)
		if _, err = io.ReadFull(c.reader, body); err != nil {
			return
		}
	}
	if strings.EqualFold(headers.Get("Connection"), "close") {
		c.close()
	}
	return status, headers.Get("Location"), body, nil
}

// find asks for something and tells the status, or that the marker is not in the answer.
func (c *client) find(request, marker []byte) string {
	status, _, body, err := c.ask(request)
	if err == nil && status == ok200 && !bytes.Contains(body, marker) {
		return "differs"
	}
	return outcome(status, err)
}

// insertAnd creates something, sends the method to what it created, and tells the status.
func (c *client) insertAnd(method string, request []byte, head string) string {
	status, location, created, err := c.ask(request)
	if err != nil || status != created201 {
		return outcome(status, err)
	}
	place, err := url.Parse(location)
	if err != nil {
		return outcome(status, err)
	}
	status, _, found, err := c.ask([]byte(method + " " + place.RequestURI() + head))
	if err == nil && status == ok200 && !bytes.Equal(created, found) {
		return "differs"
	}
	return outcome(status, err)
}

func outcome(status int, err error) string {
	if err != nil {
		return "error"
	}
	return strconv.Itoa(status)
}

func main() {
	log.SetFlags(0)
	clients := flag.Int("c", 1, "clients at once")
	operations := flag.Int("n", 1, "operations in all")
	timeout := flag.Duration("t", 20*time.Second, "for an answer")
	body := flag.String("body", "", "JSON to POST")
	alone := flag.Bool("alone", false, "do not ask for what a POST made")
	deletes := flag.Bool("delete", false, "delete what a POST made")
	lasting := flag.Duration("for", 0, "how long to ask, instead of -n")
	marker := flag.String("marker", "", "text that an answer must have in it")
	var headers string
	flag.Func("H", "a header, as often as wanted", func(text string) error {
		headers += text + "\r\n"
		return nil
	})
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("no URL")
	}

	var address, head string
	var requests [][]byte
	patches := false
	for _, each := range flag.Args() {
		patches = patches || strings.HasPrefix(each, "PATCH ")
	}
	for _, each := range flag.Args() {
		method := "POST"
		if patches {
			method = "GET"
		}
		if text, isPatch := strings.CutPrefix(each, "PATCH "); isPatch {
			each, method = text, "PATCH"
		}
		target, err := url.Parse(each)
		if err != nil {
			log.Fatal(err)
		}
		address = target.Host
		head = " HTTP/1.1\r\nHost: " + address + "\r\n" + headers + "\r\n"
		request := "GET " + target.RequestURI() + head
		if *body != "" && method != "GET" {
			request = fmt.Sprintf(
				"%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
					"Content-Length: %d\r\n%s\r\n%s",
				method, target.RequestURI(), address, len(*body), headers, *body)
		}
		requests = append(requests, []byte(request))
	}

	isNumbered := strings.Contains(*body, "{number}")
	var ready, done sync.WaitGroup
	var turn atomic.Int64
	start := make(chan struct{})
	rows := make([][]row, *clients)
	ready.Add(*clients)
	done.Add(*clients)
	var began time.Time
	for number := range rows {
		go func() {
			defer done.Done()
			one := client{address: address, timeout: *timeout}
			defer one.close()
			named := func(text []byte) []byte {
				return bytes.ReplaceAll(text, []byte("{client}"), []byte(fmt.Sprintf("%04d", number)))
			}
			its := requests
			if strings.Contains(headers, "{client}") {
				its = nil
				for _, each := range requests {
					its = append(its, named(each))
				}
			}
			expected := named([]byte(*marker))
			one.connect() // what fails now fails again at the first request
			ready.Done()
			<-start
			for {
				n := int(turn.Add(1)) - 1
				from := time.Now()
				if *lasting > 0 && from.Sub(began) >= *lasting || *lasting == 0 && n >= *operations {
					return
				}
				request := its[n%len(its)]
				if isNumbered {
					name := fmt.Sprintf("%08d", n)
					request = bytes.ReplaceAll(request, []byte("{number}"), []byte(name))
				}
				var status string
				if *body == "" || *alone || patches {
					status = one.find(request, expected)
				} else if *deletes {
					status = one.insertAnd("DELETE", request, head)
				} else {
					status = one.insertAnd("GET", request, head)
				}
				each := row{from.Sub(began), time.Since(from), status}
				rows[number] = append(rows[number], each)
			}
		}()
	}
	ready.Wait()
	began = time.Now()
	close(start)
	done.Wait()

	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, its := range rows {
		for _, each := range its {
			fmt.Fprintf(out, "%.6f,%.6f,%s\n", each.began.Seconds(), each.took.Seconds(), each.status)
		}
	}
}
