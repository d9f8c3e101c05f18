// The server's answers; what it refuses is a Refusal with the sentence and the field it is about.

export class Refusal extends Error {
  constructor(said, status) {
    super(said.error);
    this.where = said.where ?? "";
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let said;
  try {
    said = await response.json();
  } catch {
    said = { error: `The server answered ${response.status}.` };
  }
  throw new Refusal(said, response.status);
}

export async function offered() {
  return (await checked(await fetch("/api/catalog"))).json();
}

export async function post(kind, body, signal) {
  const asked = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  return checked(await fetch(`/api/${kind}`, asked));
}

export async function keep(kind, body, usual) {
  const response = await post(kind, body);
  const said = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = said ? said[1] : usual;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
