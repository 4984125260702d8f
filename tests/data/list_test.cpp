// CSV lists of images: what is a field, where paths may lead, and errors with their line.
#include "data/listing.h"
#include "support.h"

namespace axial::data::test {
namespace {

class List : public ::testing::Test {
 protected:
  std::vector<std::string> read(const std::string& text, bool outside = false) {
    write(dir_ / "set.csv", Bytes(text.begin(), text.end()));
    std::vector<std::string> found;
    for (const Listed& image : read_list(dir_ / "set.csv", outside).images) {
      EXPECT_EQ(image.path, (dir_.path() / image.name).string());
      found.push_back(image.name + "=" + image.label);
    }
    return found;
  }
  std::string error(const std::string& text) {
    return error_of([&] { read(text); });
  }
  TempDir dir_;
};

using Names = std::vector<std::string>;

TEST_F(List, FieldsAreThoseOfRfc4180) {
  EXPECT_EQ(read("a.png,cat\nb/c.jpg,dog\n"), (Names{"a.png=cat", "b/c.jpg=dog"}));
  EXPECT_EQ(read("a.png,cat\r\n\r\nb.png,dog"), (Names{"a.png=cat", "b.png=dog"}));
  EXPECT_EQ(read("\"a, b.png\",\"the \"\"big\"\" cat\"\r\n\"c.png\",\"dog\"\r\n"),
            (Names{"a, b.png=the \"big\" cat", "c.png=dog"}));
  EXPECT_EQ(read("\"two\nlines.png\",x\n./a/../b.png,y\n"), (Names{"two\nlines.png=x", "b.png=y"}));
  EXPECT_EQ(read("\xef\xbb\xbfpath,label\na.png,1\n"), Names{"a.png=1"}) << "a byte order mark, a header";
}

TEST_F(List, AHeaderNamesTheColumns) {
  EXPECT_EQ(read("id,Label,width,PATH\n7,cat,30,a.png\n"), Names{"a.png=cat"});
  EXPECT_EQ(read("path,class\nx.png,dog\n"), (Names{"path=class", "x.png=dog"})) << "no header: it names no label";
}

TEST_F(List, ErrorsNameTheLine) {
  const std::string file = (dir_ / "set.csv").string();
  expect_parts(error("a.png,cat\nb.png\n"), {file + ":2:", "1 fields", "path,label"});
  expect_parts(error("path,label,x\na.png,cat\n"), {file + ":2:", "expected 3"});
  expect_parts(error("\"a\nb\",1\n,cat\n"), {file + ":3:", "empty path"});
  expect_parts(error("a.png,\n"), {file + ":1:", "label"});
  expect_parts(error("a.png,b\x01\n"), {file + ":1:", "label"});
  expect_parts(error("a.png, b\n"), {file + ":1:", "' b'", "blanks"});
  expect_parts(error(std::string("a.png\0x,b\n", 10)), {file + ":1:", "zero byte"});
  expect_parts(error("a.png,b\nx/../a.png,c\n"), {file + ":2:", "of class 'c'", "'b' on a line before"});
  expect_parts(error("a.png,\"b\n"), {file + ":1:", "does not end"});
  expect_parts(error("a.png,\"b\"c\n"), {file + ":1:", "closing quote"});
  expect_parts(error("a\"b.png,c\n"), {file + ":1:", "quote within"});
  expect_parts(error("path,label\n"), {file, "lists no images"});
  expect_parts(error_of([&] { read_list(dir_ / "none.csv", false); }), {"none.csv", "no such file"});
}

// A few KB of gzip can be GB of lines.
TEST_F(List, GzipIsNoList) {
  const std::string text = "a.png,cat\n";
  write(dir_ / "set.csv", gzip(Bytes(text.begin(), text.end())));
  expect_parts(error_of([&] { read_list(dir_ / "set.csv", false); }), {"set.csv: ", "gzip", "expected CSV"});
}

TEST_F(List, PathsStayInTheFolderUnlessAskedFor) {
  const std::string file = (dir_ / "set.csv").string();
  expect_parts(error("a.png,1\n../b.png,2\n"),
               {file + ":2: ../b.png", "leaves the list's folder", "data.list_outside"});
  expect_parts(error("a/../../b.png,2\n"), {file + ":1:", "leaves"});
  expect_parts(error("/etc/b.png,2\n"), {file + ":1: /etc/b.png", "absolute"});
  EXPECT_EQ(read("a/../b.png,2\n..c.png,1\n"), (Names{"b.png=2", "..c.png=1"}));
  EXPECT_EQ(read("../b.png,2\n", true), Names{"../b.png=2"});
  EXPECT_EQ(read_list(dir_ / "set.csv", true).images[0].label, "2");
  write(dir_ / "set.csv", {'/', 'x', ',', '1'});
  EXPECT_EQ(read_list(dir_ / "set.csv", true).images[0].path, "/x");
}

}  // namespace
}  // namespace axial::data::test
