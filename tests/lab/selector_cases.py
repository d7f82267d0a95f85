"""Label selectors as kubectl reads them: texts that are ones, and texts that are not. Data only."""

VALID = [
    "", "  ", "key", "!key", "! key", "key=value", "key==value", "key!=value", " key = value ",
    "key=", "key!=", "key in (a)", "key in (a,b)", "key in(b, a ,a)", "key in (,a)", "key in (,)",
    "key notin (a,b)", "io.datastrophic/istio-aux=enabled", "a.b-c.d/Name_1.x", "in", "notin=in",
    "in in (in)", "a=b,c!=d,!e,f,g in (h,i),j notin (k)", "a=b,a=c", "k" * 63, "p" * 253 + "/k",
    "key=" + "v" * 63,
]  # fmt: skip
INVALID = [
    ",", "a,", ",a", "a,,b", "a b", "a=b c", "a in b", "a in ()", "a in", "a in (b", "a in b)",
    "ain(b)", "a notin ()", "a=b=c", "a===b", "!", "!a=b", "!a in (b)", "=b", "a<1", "a>1", "-a",
    "a-", "/a", "a/", "a/b/c", "A.b/c", "a..b/c", "ü=a", "a=ü", "k" * 64, "p" * 254 + "/k",
    "key=" + "v" * 64, "a=-b", "a in (b c)", "a\nb", "(a)",
]  # fmt: skip
