// Vectors prints what the real k8s.io/apimachinery answers for quantities and label requirements, so that
// our own implementations are tested against it. README.md describes the files and every place where
// apimachinery departs from exact arithmetic or from the grammar of the specification.
//
//	go run . -out DIR     write the files
//	go run . -check DIR   exit 1 and name the first line that differs from the files in DIR
//
// The output depends on the pinned apimachinery alone: no time, no map order, and pseudo-random inputs drawn
// straight from PCG, whose stream is specified, so that another Go release cannot change a committed file.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "", "write the vector files into `DIR`")
	check := flag.String("check", "", "compare the vector files in `DIR` with what would be written")
	flag.Parse()
	if (*out == "") == (*check == "") || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "vectors: give either -out DIR or -check DIR")
		os.Exit(2)
	}
	if err := run(*out, *check); err != nil {
		fmt.Fprintln(os.Stderr, "vectors:", err)
		os.Exit(1)
	}
}

type vectorFile struct {
	name  string
	lines [][]byte
}

func run(out, check string) error {
	files, err := produce()
	if err != nil {
		return err
	}
	for _, file := range files {
		if out != "" {
			content := append(bytes.Join(file.lines, []byte("\n")), '\n')
			err = os.WriteFile(filepath.Join(out, file.name), content, 0o644)
		} else {
			err = file.compare(check)
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d cases\n", file.name, len(file.lines))
	}
	return nil
}

func produce() ([]vectorFile, error) {
	quantities, err := quantityCases()
	if err != nil {
		return nil, err
	}
	pairs, err := pairCases()
	if err != nil {
		return nil, err
	}
	matching, err := matchingCases()
	if err != nil {
		return nil, err
	}
	return []vectorFile{
		{"quantity.jsonl", encode(quantities)},
		{"quantity_pairs.jsonl", encode(pairs)},
		{"matching.jsonl", encode(matching)},
	}, nil
}

func encode[T any](cases []T) [][]byte {
	lines := make([][]byte, len(cases))
	for i, c := range cases {
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(c); err != nil {
			panic(err) // a case is strings, booleans and integers
		}
		lines[i] = bytes.TrimSuffix(line.Bytes(), []byte("\n"))
	}
	return lines
}

func (f vectorFile) compare(dir string) error {
	path := filepath.Join(dir, f.name)
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(content, []byte("\n")) {
		return fmt.Errorf("%s does not end with a newline", path)
	}
	committed := bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))
	for i := range max(len(committed), len(f.lines)) {
		have, want := lineAt(committed, i), lineAt(f.lines, i)
		if have != want {
			return fmt.Errorf("%s:%d differs\n  committed: %s\n  produced:  %s", path, i+1, have, want)
		}
	}
	return nil
}

func lineAt(lines [][]byte, i int) string {
	if i >= len(lines) {
		return "(no such line)"
	}
	return string(lines[i])
}

// unexplained reports an answer that README.md does not account for: then it is the README, and probably our
// implementation, that must be looked at before new vectors are committed.
func unexplained(format string, args ...any) error {
	return errors.New("apimachinery departs from README.md: " + fmt.Sprintf(format, args...))
}
